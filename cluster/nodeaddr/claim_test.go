package nodeaddr

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// A name has one owner, until that releases it or ends.
func TestClaim(t *testing.T) {
	m := newMachine(t)
	claim := func() (release func() error, err error) {
		m.do(func() { release, err = Claim("coracle-cluster-6443", m.log.Logger()) })
		return release, err
	}
	tables := func() (all string) {
		m.do(func() {
			out, err := exec.Command("nft", "list", "tables").CombinedOutput()
			if err != nil {
				t.Errorf("nft list tables: %v: %s", err, out)
			}
			all = string(out)
		})
		return all
	}
	release, err := claim()
	if err != nil {
		t.Fatal(err)
	}
	if all := tables(); !strings.Contains(all, "coracle-cluster-6443") {
		t.Fatalf("this kernel has no tables with owners, so nothing is claimed: %s", all)
	}
	if _, err := claim(); !errors.Is(err, ErrClaimed) {
		t.Errorf("a second owner: %v", err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
	again, err := claim()
	if err != nil {
		t.Fatalf("after its release: %v", err)
	}
	if err := again(); err != nil {
		t.Error(err)
	}
	if all := tables(); all != "" {
		t.Errorf("left are %s", all)
	}
}
