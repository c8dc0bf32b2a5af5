package wireguard

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/coracle-project/coracle/cluster/pki"
)

// Key is a key of Curve25519 (RFC 7748), private or public.
type Key [32]byte

// String is base64, as wg(8) writes keys.
func (k Key) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// ParsePublic reads a public key of another machine, which may be anything.
func ParsePublic(text string) (k Key, err error) {
	if len(text) != base64.StdEncoding.EncodedLen(len(k)) {
		return k, fmt.Errorf("a WireGuard key has 44 characters of base64, and this has %d", len(text))
	}
	data, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(data) != len(k) {
		return k, fmt.Errorf("%q is no WireGuard key", text)
	}
	copy(k[:], data)
	// A point of low order makes the shared secret known to everyone: ECDH refuses it.
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return k, err
	}
	public, err := ecdh.X25519().NewPublicKey(k[:])
	if err == nil {
		_, err = private.ECDH(public)
	}
	if err != nil {
		return k, fmt.Errorf("%q is no usable WireGuard key", text)
	}
	return k, nil
}

// Public is the public key of a private one.
func (k Key) Public() (Key, error) {
	private, err := ecdh.X25519().NewPrivateKey(k[:])
	if err != nil {
		return Key{}, err
	}
	return Key(private.PublicKey().Bytes()), nil
}

// Private reads this machine's key from a file, which it makes if there is none. Others must not be
// able to read it.
func Private(file string) (Key, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return makePrivate(file)
	}
	if err != nil {
		return Key{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Key{}, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Key{}, fmt.Errorf("%s: others than its owner can use it (mode %04o): delete it, and the node makes another key", file,
			info.Mode().Perm())
	}
	var k Key
	data, err := io.ReadAll(io.LimitReader(f, int64(len(k))+1))
	if err != nil {
		return k, err
	}
	if len(data) != len(k) {
		return k, fmt.Errorf("%s is damaged: a key has %d bytes: delete it, and the node makes another key", file, len(k))
	}
	copy(k[:], data)
	return k, nil
}

func makePrivate(file string) (Key, error) {
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return Key{}, err
	}
	return Key(private.Bytes()), pki.Replace(file, private.Bytes(), 0o600)
}
