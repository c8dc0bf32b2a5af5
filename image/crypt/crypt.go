// Package crypt reads layers that were encrypted for this node, by OCI image encryption
// (containers/ocicrypt). An encrypted layer is a blob whose media type ends in +encrypted
// and whose descriptor has the blob's key, itself encrypted for each recipient (JWE or
// PKCS #7). Here are the private halves: a directory of files, read for each image, so that
// a key counts as soon as it is there.
//
// What comes out is trusted no more than any other layer: its end is authenticated by the
// encryption (HMAC), and all of it by the image's diff id, before anything of it is used.
package crypt

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containers/ocicrypt"
	"github.com/containers/ocicrypt/config"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ErrNoKey says that an image is encrypted, and not for this node.
var ErrNoKey = errors.New("image is encrypted for others")

// suffix marks the media type of an encrypted layer.
const suffix = "+encrypted"

// maxKeyFile bounds a file with a key.
const maxKeyFile = 1 << 20

// Encrypted says whether a media type is an encrypted layer's, and what the layer is when
// it is decrypted.
func Encrypted(mediaType string) (plain string, encrypted bool) {
	return strings.CutSuffix(mediaType, suffix)
}

// Keys is a directory with private keys (PEM or DER, without passwords) and, for PKCS #7,
// the certificates that belong to them. Empty: there are none.
type Keys struct{ Dir string }

// Check says whether a layer can be decrypted, without having it. A layer that is not
// encrypted can. Kinds: ErrNoKey, the file system's.
func (k Keys) Check(d ocispec.Descriptor) error {
	if _, encrypted := Encrypted(d.MediaType); !encrypted {
		return nil
	}
	dc, err := k.load()
	if err != nil {
		return err
	}
	if _, _, err := ocicrypt.DecryptLayer(dc, nil, d, true); err != nil {
		return k.noKey(d, err)
	}
	return nil
}

// Open decrypts a layer that comes from r; one that is not encrypted passes. Reading fails
// at the end if it is not what was encrypted. Kinds: ErrNoKey, the file system's.
func (k Keys) Open(d ocispec.Descriptor, r io.Reader) (io.Reader, error) {
	if _, encrypted := Encrypted(d.MediaType); !encrypted {
		return r, nil
	}
	dc, err := k.load()
	if err != nil {
		return nil, err
	}
	plain, _, err := ocicrypt.DecryptLayer(dc, r, d, false)
	if err != nil {
		return nil, k.noKey(d, err)
	}
	return plain, nil
}

func (k Keys) noKey(d ocispec.Descriptor, err error) error {
	if k.Dir == "" {
		return fmt.Errorf("%w: layer %s: no directory with keys is configured (image.decryption_keys)", ErrNoKey, d.Digest)
	}
	// The library joins what each way of wrapping keys says, over several lines.
	why := strings.Join(strings.Fields(err.Error()), " ")
	return fmt.Errorf("%w: layer %s: no key in %s fits: %.300s", ErrNoKey, d.Digest, k.Dir, why)
}

// load reads the directory.
func (k Keys) load() (*config.DecryptConfig, error) {
	var keys, passwords, certs [][]byte
	if k.Dir != "" {
		files, err := os.ReadDir(k.Dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("decryption keys: %w", err)
		}
		for _, f := range files {
			data, err := readKey(filepath.Join(k.Dir, f.Name()))
			switch {
			case err != nil:
				return nil, fmt.Errorf("decryption keys: %w", err)
			case bytes.Contains(data, []byte("-----BEGIN CERTIFICATE-----")):
				certs = append(certs, data)
			case data != nil:
				keys, passwords = append(keys, data), append(passwords, nil)
			}
		}
	}
	private, err := config.DecryptWithPrivKeys(keys, passwords)
	if err != nil {
		return nil, fmt.Errorf("decryption keys: %w", err)
	}
	public, err := config.DecryptWithX509s(certs)
	if err != nil {
		return nil, fmt.Errorf("decryption keys: %w", err)
	}
	return config.CombineCryptoConfigs([]config.CryptoConfig{private, public}).DecryptConfig, nil
}

// readKey reads a file; what is no file, such as a directory of Kubernetes' secret
// volumes, is nil.
func readKey(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() {
		return nil, err
	}
	if st.Size() > maxKeyFile {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, maxKeyFile)
	}
	return os.ReadFile(path)
}
