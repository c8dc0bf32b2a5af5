// Package crypt reads layers that were encrypted for this node, by OCI image encryption
// (containers/ocicrypt). An encrypted layer is a blob whose media type ends in +encrypted
// and whose descriptor has the blob's key, itself encrypted for each recipient (JWE or
// PKCS #7). Here are the private halves: a directory of files, read once when an image is checked,
// and for each layer that is decrypted, so that a key counts as soon as it is there.
//
// Of ocicrypt only the cipher of layers is used. Its package ocicrypt would link OpenPGP, too,
// 0.8 MB of coracled for keys that no setting names.
//
// What comes out is trusted no more than any other layer: its end is authenticated by the
// encryption (HMAC), and all of it by the image's diff id, before anything of it is used.
package crypt

import (
	"context"
	"crypto/aes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containers/ocicrypt/blockcipher"
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

// Keys is a directory with private keys (PEM, DER or JWK, without passwords) and, for PKCS #7,
// the certificates that belong to them. Files that are neither are ignored. Empty: there are none.
type Keys struct{ Dir string }

// Check says whether layers can be decrypted, without having them. A layer that is not
// encrypted can. Kinds: ErrNoKey, the file system's, that of ctx.
func (k Keys) Check(ctx context.Context, layers ...ocispec.Descriptor) error {
	var ring ring
	loaded := false
	for _, d := range layers {
		if _, encrypted := Encrypted(d.MediaType); !encrypted {
			continue
		}
		if !loaded {
			var err error
			if ring, err = k.load(d); err != nil {
				return err
			}
			loaded = true
		}
		if _, err := k.layerKey(ctx, ring, d); err != nil {
			return err
		}
	}
	return nil
}

// Open decrypts a layer that comes from r; one that is not encrypted passes. Reading fails
// at the end if it is not what was encrypted. Kinds: ErrNoKey, the file system's, that of ctx.
func (k Keys) Open(ctx context.Context, d ocispec.Descriptor, r io.Reader) (io.Reader, error) {
	if _, encrypted := Encrypted(d.MediaType); !encrypted {
		return r, nil
	}
	ring, err := k.load(d)
	if err != nil {
		return nil, err
	}
	private, err := k.layerKey(ctx, ring, d)
	if err != nil {
		return nil, err
	}
	plain, err := decrypt(private, d.Annotations[annotationOptions], r)
	if err != nil {
		return nil, fmt.Errorf("%w: layer %s: %w", ErrNoKey, d.Digest, err)
	}
	return plain, nil
}

// decrypt reads a layer with its key, private, and the public options of its cipher (base64).
func decrypt(private []byte, annotation string, r io.Reader) (io.Reader, error) {
	public, err := base64.StdEncoding.DecodeString(annotation)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", annotationOptions, err)
	}
	var opts blockcipher.LayerBlockCipherOptions
	if err := json.Unmarshal(public, &opts.Public); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", annotationOptions, err)
	}
	if err := json.Unmarshal(private, &opts.Private); err != nil {
		return nil, fmt.Errorf("the layer's key: %w", err)
	}
	// Anyone can change the annotation, and the library panics on any other length.
	if nonce, ok := opts.GetOpt("nonce"); !ok || len(nonce) != aes.BlockSize {
		return nil, fmt.Errorf("its nonce has %d bytes instead of %d", len(nonce), aes.BlockSize)
	}
	ciphers, err := blockcipher.NewLayerBlockCipherHandler()
	if err != nil {
		return nil, err
	}
	plain, _, err := ciphers.Decrypt(r, opts)
	return plain, err
}
