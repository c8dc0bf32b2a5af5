package crypt

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/go-jose/go-jose/v4"
	josejson "github.com/go-jose/go-jose/v4/json"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/smallstep/pkcs7"
)

// The annotations of a layer's descriptor. Those of keys are lists of messages in base64,
// separated by commas. A message can be for several recipients.
const (
	annotationJWE     = "org.opencontainers.image.enc.keys.jwe"
	annotationPKCS7   = "org.opencontainers.image.enc.keys.pkcs7"
	annotationOptions = "org.opencontainers.image.enc.pubopts"
)

// The algorithms that a key may be wrapped with: those of ocicrypt, and RFC 7518 section 5.1.
var (
	keyAlgorithms     = []jose.KeyAlgorithm{jose.RSA_OAEP, jose.RSA_OAEP_256, jose.ECDH_ES_A128KW, jose.ECDH_ES_A192KW, jose.ECDH_ES_A256KW}
	contentAlgorithms = []jose.ContentEncryption{
		jose.A128CBC_HS256, jose.A192CBC_HS384, jose.A256CBC_HS512, jose.A128GCM, jose.A192GCM, jose.A256GCM,
	}
)

// Limits of the work that a manifest may ask for. The parsers' stacks grow with the depth of
// elements. The sizes are enough for a hundred recipients with the largest usual keys.
const (
	maxWrapped    = 16        // messages of a layer
	maxJWE        = 128 << 10 // bytes of a message
	maxPKCS7      = 64 << 10
	maxRecipients = 128 // of all JWE messages of a layer: each costs a private-key operation for each key here
)

// layerKey decrypts a layer's key: the private options of its cipher, in JSON. Kinds: ErrNoKey,
// that of ctx.
func (k Keys) layerKey(ctx context.Context, ring ring, d ocispec.Descriptor) ([]byte, error) {
	var failures []error
	recipients := 0
	for _, way := range []struct {
		annotation string
		unwrap     func(context.Context, []byte, *int) ([]byte, error)
	}{{annotationJWE, ring.unwrapJWE}, {annotationPKCS7, ring.unwrapPKCS7}} {
		for wrapped := range strings.SplitSeq(d.Annotations[way.annotation], ",") {
			if wrapped == "" {
				continue
			}
			if len(failures) == maxWrapped {
				break
			}
			data, err := base64.StdEncoding.DecodeString(wrapped)
			if err == nil {
				data, err = guarded(func() ([]byte, error) { return way.unwrap(ctx, data, &recipients) })
			}
			if err == nil {
				return data, nil
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			failures = append(failures, fmt.Errorf("%s: %w", way.annotation, err))
		}
	}
	if len(failures) == 0 {
		failures = append(failures, errors.New("its descriptor has no key of a known kind (JWE, PKCS #7)"))
	}
	// The libraries' errors, of which there can be many, have several lines.
	why := strings.Join(strings.Fields(errors.Join(failures...).Error()), " ")
	return nil, fmt.Errorf("%w: layer %s: no key in %s fits: %.300s", ErrNoKey, d.Digest, k.Dir, why)
}

// ring is what a directory of keys has.
type ring struct {
	private []crypto.PrivateKey // for go-jose: those of package crypto, and *jose.JSONWebKey
	certs   []*x509.Certificate
}

// unwrapJWE adds the message's recipients to those of the messages before it.
func (r ring) unwrapJWE(ctx context.Context, data []byte, recipients *int) ([]byte, error) {
	if len(data) > maxJWE {
		return nil, fmt.Errorf("%d bytes, at most %d are read", len(data), maxJWE)
	}
	message, n, err := countRecipients(data)
	if err != nil {
		return nil, err
	}
	if *recipients += n; *recipients > maxRecipients {
		return nil, fmt.Errorf("%d recipients in all, at most %d are tried", *recipients, maxRecipients)
	}
	wrapped, err := jose.ParseEncrypted(message, keyAlgorithms, contentAlgorithms)
	if err != nil {
		return nil, err
	}
	for _, key := range r.private {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if _, _, plain, err := wrapped.DecryptMulti(key); err == nil {
			return plain, nil
		}
	}
	return nil, fmt.Errorf("none of %d keys", len(r.private))
}

// countRecipients counts the recipients of a message as go-jose will read it: without white space,
// wherever that is, and by its JSON. Another reader could count others.
func countRecipients(data []byte) (message string, n int, err error) {
	message = strings.Map(func(c rune) rune {
		if unicode.IsSpace(c) {
			return -1
		}
		return c
	}, string(data))
	if !strings.HasPrefix(message, "{") {
		return message, 1, nil
	}
	var list struct {
		Recipients []struct{} `json:"recipients"`
	}
	err = josejson.Unmarshal([]byte(message), &list)
	return message, max(1, len(list.Recipients)), err
}

// unwrapPKCS7 tries one recipient for each certificate, however many the message has.
func (r ring) unwrapPKCS7(ctx context.Context, data []byte, _ *int) ([]byte, error) {
	if len(r.private) == 0 || len(r.certs) == 0 {
		return nil, fmt.Errorf("there are %d keys and %d certificates", len(r.private), len(r.certs))
	}
	if len(data) > maxPKCS7 {
		return nil, fmt.Errorf("%d bytes, at most %d are read", len(data), maxPKCS7)
	}
	if err := checkAuthenticated(data); err != nil {
		return nil, err
	}
	wrapped, err := pkcs7.Parse(data)
	if err != nil {
		return nil, err
	}
	for _, key := range r.private {
		for _, cert := range r.certs {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if plain, err := wrapped.Decrypt(cert, key); err == nil {
				return plain, nil
			}
		}
	}
	return nil, fmt.Errorf("none of %d keys and %d certificates", len(r.private), len(r.certs))
}

// envelope is a message of PKCS #7 (RFC 2315), as far as checkAuthenticated looks at it.
type envelope struct {
	Type    asn1.ObjectIdentifier
	Content struct {
		Version    int
		Recipients asn1.RawValue
		Encrypted  struct {
			Type      asn1.ObjectIdentifier
			Algorithm pkix.AlgorithmIdentifier
			Content   asn1.RawValue `asn1:"tag:0,optional"`
		}
	} `asn1:"explicit,tag:0"`
}

// checkAuthenticated refuses a message whose content is not encrypted with AES-GCM, as ocicrypt's
// is. The library decrypts AES-CBC and DES, too. Then a sender who changes the content of another
// sender's message could learn from the errors of pulls what it is (a padding oracle).
func checkAuthenticated(message []byte) error {
	var m envelope
	if _, err := asn1.Unmarshal(message, &m); err != nil {
		return err
	}
	alg := m.Content.Encrypted.Algorithm.Algorithm
	if !alg.Equal(pkcs7.OIDEncryptionAlgorithmAES128GCM) && !alg.Equal(pkcs7.OIDEncryptionAlgorithmAES256GCM) {
		return fmt.Errorf("its content has the algorithm %s instead of AES-GCM", alg)
	}
	return nil
}

// guarded unwraps a message. Both libraries panic on some: pkcs7 on an element that ends in its
// tag, go-jose on an empty ciphertext, for which it takes no more than the node's public key.
func guarded(unwrap func() ([]byte, error)) (key []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			key, err = nil, fmt.Errorf("malformed message: %v", r)
		}
	}()
	return unwrap()
}

// load reads the directory, for the layer d. Kinds: ErrNoKey, the file system's.
func (k Keys) load(d ocispec.Descriptor) (ring, error) {
	var r ring
	if k.Dir == "" {
		return r, fmt.Errorf("%w: layer %s: no directory with keys is configured (image.decryption_keys)", ErrNoKey, d.Digest)
	}
	files, err := os.ReadDir(k.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("decryption keys: %w", err)
	}
	for _, f := range files {
		data, err := readKey(filepath.Join(k.Dir, f.Name()))
		if err != nil {
			return r, fmt.Errorf("decryption keys: %w", err)
		}
		r.add(data)
	}
	return r, nil
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

// add takes the keys and certificates of a file.
func (r *ring) add(data []byte) {
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		var jwk jose.JSONWebKey
		if jwk.UnmarshalJSON(data) == nil && !jwk.IsPublic() {
			r.private = append(r.private, &jwk)
		}
		return
	}
	block, rest := pem.Decode(data)
	if block == nil {
		r.addDER(data)
		return
	}
	for ; block != nil; block, rest = pem.Decode(rest) {
		r.addDER(block.Bytes)
	}
}

// addDER takes a key or a certificate. Anything else is ignored: of the other files of a
// directory, and of the kinds of keys that no layer is encrypted for, none keeps those that fit
// from being used.
func (r *ring) addDER(der []byte) {
	if key, err := x509.ParsePKCS8PrivateKey(der); err == nil {
		r.private = append(r.private, key)
	} else if key, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		r.private = append(r.private, key)
	} else if key, err := x509.ParseECPrivateKey(der); err == nil {
		r.private = append(r.private, key)
	} else if cert, err := x509.ParseCertificate(der); err == nil {
		r.certs = append(r.certs, cert)
	}
}
