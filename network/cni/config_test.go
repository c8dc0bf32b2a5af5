package cni

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func FuzzReadConfig(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"x"}]}`), true)
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"x","type":"y"}`), false)
	f.Fuzz(func(t *testing.T, data []byte, list bool) {
		path := filepath.Join(t.TempDir(), map[bool]string{true: "a.conflist", false: "a.conf"}[list])
		must(t, os.WriteFile(path, data, 0o600))
		l, err := readConfig(path)
		if err == nil {
			if _, err := Complete(l); err != nil || len(l.Plugins) == 0 {
				t.Errorf("accepted, and then %v", err)
			}
		} else if !errors.Is(err, ErrConfig) {
			t.Errorf("%v is not ErrConfig", err)
		}
	})
}
