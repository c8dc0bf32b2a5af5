package main

import (
	"strings"
	"testing"
)

// Regression: a machine whose API server listens on all addresses became a member of etcd at
// https://0.0.0.0, which no other member reaches, and no further machine could join.
func TestMemberURL(t *testing.T) {
	for _, bind := range []string{"127.0.0.1", "::1"} {
		if at, err := memberURL(bind, 0); err == nil || !strings.Contains(err.Error(), "--bind-address") {
			t.Errorf("on %s: %s, %v", bind, at, err)
		}
	}
	for _, bind := range []string{"0.0.0.0", "::"} { // without a way to other machines it is an error
		if at, err := memberURL(bind, 0); err == nil && (strings.Contains(at, "0.0.0.0") || strings.Contains(at, "[::]")) {
			t.Errorf("on %s: %s", bind, at)
		}
	}
}
