package forwarded

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAdd(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "network")
	for _, step := range []struct {
		add  []string
		want string
	}{{nil, ""}, {[]string{IPv6}, "6"}, {[]string{IPv4}, "46"}, {[]string{IPv4, IPv6}, "46"}} {
		if err := Add(dir, step.add...); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(dir); err != nil || got != step.want {
			t.Errorf("with %v it is %q, %v, want %q", step.add, got, err, step.want)
		}
	}
	if err := os.WriteFile(Path(dir), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Add(dir, IPv4); err != nil {
		t.Error(err)
	}
	if got, err := Read(dir); err == nil {
		t.Errorf("a damaged record was replaced by %q", got)
	}
}
