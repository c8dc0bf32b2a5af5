package main

import (
	"path/filepath"
	"testing"
)

// What up has started is down's to end, also after a reboot; what somebody else has started is not.
func TestWhoseCoracled(t *testing.T) {
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name          string
		was           upOptions
		runs          bool
		down, purging bool
	}{
		{"never up", upOptions{}, false, false, false},
		{"somebody else's", upOptions{Coracled: false}, true, false, false},
		{"ours runs", upOptions{Coracled: true, Boot: boot}, true, true, true},
		{"ours died", upOptions{Coracled: true, Boot: boot}, false, true, true},
		{"after down", upOptions{Coracled: true}, false, false, true},
		{"after down, then somebody else's", upOptions{Coracled: true}, true, false, false},
		{"after a reboot", upOptions{Coracled: true, Boot: "before"}, false, false, true},
		{"after a reboot, then somebody else's", upOptions{Coracled: true, Boot: "before"}, true, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			p := place{root: filepath.Join(dir, "root"), state: dir}
			if test.runs {
				lock, err := hold(p.runtime())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = lock.Close() }()
			}
			for purge, want := range map[bool]bool{false: test.down, true: test.purging} {
				if got, err := test.was.ours(p, purge); err != nil || got != want {
					t.Errorf("purge %t: ours %t, %v, want %t", purge, got, err, want)
				}
			}
		})
	}
}
