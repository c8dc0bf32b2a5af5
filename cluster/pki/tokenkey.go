package pki

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"log/slog"
	"slices"
	"time"
)

// tokenLife is how long a token that the API server signs is valid at most, unless its client asks
// for more: it extends those of pods to a year. A former key verifies tokens for as long.
const tokenLife = 365*24*time.Hour + time.Hour

// typePublic is that of a former key's block. Only its public part is kept.
const typePublic = "PUBLIC KEY"

// tokenKeys are the keys of service account tokens.
type tokenKeys struct {
	key    crypto.Signer
	made   time.Time // the zero time if it is not known
	former []formerKey
}

// formerKey verifies the tokens that it signed before it was replaced.
type formerKey struct {
	der   []byte
	until time.Time
}

// ensureKey makes sure that the file at path holds a private key that was not made before again,
// and after it the keys that it replaced, for as long as tokens may be valid. It returns when the
// next of these ends, the zero time if there is none.
func ensureKey(path string, now, again time.Time, log *slog.Logger) (ends time.Time, err error) {
	data, err := read(path)
	if err != nil {
		return ends, err
	}
	k := decodeTokenKeys(data)
	if data != nil && k.key == nil {
		log.Warn("the key that signs service account tokens was damaged and is made again; tokens handed out before are void", "file", path)
	}
	k.former = slices.DeleteFunc(k.former, func(f formerKey) bool { return !now.Before(f.until) })
	if k.key == nil || k.made.Before(again) {
		if k.key != nil {
			der, err := x509.MarshalPKIXPublicKey(k.key.Public())
			if err != nil {
				return ends, err
			}
			k.former = append([]formerKey{{der, now.Add(tokenLife).Truncate(time.Second)}}, k.former...)
			log.Info("the key of service account tokens is replaced; the former one verifies", "until", k.former[0].until)
		}
		if k.key, err = newKey(); err != nil {
			return ends, err
		}
		k.made = now
	}
	for _, f := range k.former {
		ends = earliest(ends, f.until)
	}
	return ends, k.write(path)
}

func (k tokenKeys) write(path string) error {
	der, err := marshalKey(k.key)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: typeKey, Bytes: der}
	if !k.made.IsZero() {
		block.Headers = map[string]string{headerMade: k.made.UTC().Format(time.RFC3339)}
	}
	data := pem.EncodeToMemory(block)
	for _, f := range k.former {
		headers := map[string]string{headerVerifies: f.until.UTC().Format(time.RFC3339)}
		data = append(data, pem.EncodeToMemory(&pem.Block{Type: typePublic, Bytes: f.der, Headers: headers})...)
	}
	return Replace(path, data, 0o600)
}

// TokenKeyID names the key that signs service account tokens, of its file's content.
func TokenKeyID(data []byte) (string, error) {
	k := decodeTokenKeys(data)
	if k.key == nil {
		return "", errors.New("pki: there is no key of service account tokens")
	}
	der, err := x509.MarshalPKIXPublicKey(k.key.Public())
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), nil
}

func decodeTokenKeys(data []byte) (k tokenKeys) {
	for block := range blocks(data) {
		switch block.Type {
		case typeKey:
			key, err := x509.ParseECPrivateKey(block.Bytes)
			if err != nil || k.key != nil {
				continue
			}
			k.key = key
			k.made, _ = time.Parse(time.RFC3339, block.Headers[headerMade])
		case typePublic:
			if until, err := time.Parse(time.RFC3339, block.Headers[headerVerifies]); err == nil {
				k.former = append(k.former, formerKey{block.Bytes, until})
			}
		}
	}
	return k
}
