package snapshot

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
)

// A limit that no one would keep is refused. quota_vm_test.go has the rest.
func TestLimitsNeedProjectQuotas(t *testing.T) {
	s := started(t, t.TempDir())
	if s.quota != nil {
		t.Fatal("this test wants a temporary directory without project quotas")
	}
	_, err := s.Prepare(t.Context(), "c", PrepareOptions{Target: filepath.Join(t.TempDir(), "c"), Limit: Usage{Bytes: 1}})
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "prjquota") || len(s.List()) != 0 {
		t.Errorf("prepare: %v", err)
	}
	_, err = s.Prepare(t.Context(), "c", PrepareOptions{Target: filepath.Join(t.TempDir(), "c"), Limit: Usage{Bytes: -1}})
	if !errors.Is(err, ErrInvalid) {
		t.Errorf("negative: %v", err)
	}
	other := New(Config{Root: t.TempDir(), Limit: Usage{Inodes: 1}, Log: slog.New(slog.DiscardHandler)})
	if err := other.Start(t.Context()); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "prjquota") {
		t.Errorf("start: %v", err)
	}
}
