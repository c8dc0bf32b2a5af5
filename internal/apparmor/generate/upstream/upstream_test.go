package upstream

import (
	"os"
	"testing"
)

// The profile that is embedded is that of the library's version in go.mod.
func TestProfileIsUpToDate(t *testing.T) {
	want, err := Profile()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../profile")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("internal/apparmor/profile is not what the library has: go generate ./internal/apparmor\n%s", want)
	}
}
