// Package dataversion says which versions of programs may use the data that another version has
// written.
//
// An older minor version would drop what it does not know of an object when it writes it back, so
// it does not even start. Patch releases may be exchanged.
package dataversion

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
	componentversion "k8s.io/component-base/version"
)

// ErrNewer is for data that a newer minor version has written. `coracle upgrade` looks for its text
// in the log.
var ErrNewer = errors.New("the cluster's data was written by a newer version")

// Key is where etcd says which [Versions] wrote it last, as JSON. It is apart from the keys of
// objects.
const Key = "/coracle/version"

// Versions are those of a program that writes objects.
type Versions struct {
	// Coracle is a release such as v1.2.3. One that is none (a development build) is not compared.
	Coracle string `json:"coracle,omitempty"`
	// Kubernetes is the version that its types are of, such as 1.36.
	Kubernetes string `json:"kubernetes"`
}

// Own returns the versions of this program, which is the given release of Coracle.
func Own(coracle string) Versions {
	return Versions{Coracle: coracle, Kubernetes: componentversion.DefaultKubeBinaryVersion}
}

// CanRead says why a program of these versions must not use what another has written, nil if it
// may.
func (v Versions) CanRead(wrote Versions) error {
	for _, each := range []struct{ name, wrote, own string }{
		{"Coracle", wrote.Coracle, v.Coracle},
		{"Kubernetes", wrote.Kubernetes, v.Kubernetes},
	} {
		if laterMinor(each.wrote, each.own) {
			return fmt.Errorf("%w: %s %s wrote it, and this is %s %s", ErrNewer, each.name, each.wrote, each.name, each.own)
		}
	}
	return nil
}

// laterMinor compares major and minor. What is no version is later than nothing.
func laterMinor(a, b string) bool {
	x, okX := release(a)
	y, okY := release(b)
	return okX && okY && (x.Major() > y.Major() || x.Major() == y.Major() && x.Minor() > y.Minor())
}

// IsRelease says whether a version of Coracle is one that can be compared.
func IsRelease(text string) bool {
	_, ok := release(text)
	return ok
}

// release parses a version; v0.0.0 is that of development builds.
func release(text string) (*version.Version, bool) {
	v, err := version.ParseGeneric(text)
	return v, err == nil && v.Major()+v.Minor()+v.Patch() > 0
}
