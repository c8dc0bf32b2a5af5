package pki

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// Certificate is what can be told of a certificate in a file.
type Certificate struct {
	// File is the file's name without its directory.
	File    string    `json:"file"`
	Subject string    `json:"subject"`
	Issuer  string    `json:"issuer"`
	Made    time.Time `json:"made"`
	Expires time.Time `json:"expires"`
	// Replaced is set for a former authority that is trusted.
	Replaced time.Time `json:"replaced,omitzero"`
	// Warning says what is wrong, "" for nothing.
	Warning string `json:"warning,omitempty"`

	cert *x509.Certificate // nil if it is damaged
}

// lateShare is the part of a certificate's life that is left when it ought to have been renewed
// long before.
const lateShare = 24

// List returns the certificates of the pairs and kubeconfigs in dir, the next to expire first.
func List(dir string) ([]Certificate, error) {
	var all []Certificate
	for _, pattern := range []string{"*.pem", "*.kubeconfig"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			data, err := read(file)
			if err != nil {
				return nil, err
			}
			all = append(all, listed(filepath.Base(file), data, time.Now())...)
		}
	}
	slices.SortFunc(all, func(a, b Certificate) int {
		return cmp.Or(a.Expires.Compare(b.Expires), cmp.Compare(a.File, b.File))
	})
	return all, nil
}

// listed are the certificates of a file: its own, and the former authority's.
func listed(file string, data []byte, now time.Time) []Certificate {
	if strings.HasSuffix(file, ".kubeconfig") {
		config, err := clientcmd.Load(data)
		if err != nil {
			return []Certificate{{File: file, Warning: "it is damaged"}}
		}
		data = nil
		for _, user := range config.AuthInfos {
			data = append(data, user.ClientCertificateData...)
		}
	}
	a := decodeAuthority(data)
	if a.cert == nil {
		return nil
	}
	all := []Certificate{described(file, a.cert, now)}
	if a.former != nil {
		c := described(file, a.former, now)
		c.Replaced, c.Warning = a.replaced, ""
		all = append(all, c)
	}
	return all
}

func described(file string, cert *x509.Certificate, now time.Time) Certificate {
	c := Certificate{
		File: file, Subject: cert.Subject.CommonName, Issuer: cert.Issuer.CommonName, Made: madeAt(cert), Expires: cert.NotAfter,
		cert: cert,
	}
	switch left := cert.NotAfter.Sub(now); {
	case left <= 0:
		c.Warning = fmt.Sprintf("it expired on %s", cert.NotAfter.Local().Format(time.DateTime))
	case now.Before(cert.NotBefore):
		c.Warning = fmt.Sprintf("it is valid only from %s on: is this machine's clock right?", cert.NotBefore.Local().Format(time.DateTime))
	case left < min(cert.NotAfter.Sub(cert.NotBefore)/lateShare, renewBefore/2):
		c.Warning = fmt.Sprintf("it expires on %s, and was not renewed", cert.NotAfter.Local().Format(time.DateTime))
	}
	return c
}
