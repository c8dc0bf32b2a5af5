package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// size is the most that the program may have in bytes.
const size = 20_000_000

func TestWrongFlags(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := []string{"--check", "--as", "64512", "--peer", "10.0.0.254 as=64500 password-file=" + secret}
	for want, args := range map[string][]string{
		"":                                good,
		"--as is missing":                 {"--check", "--peer", "10.0.0.254 as=64500"},
		`--as: "0" is no number of an AS`: {"--check", "--as", "0", "--peer", "10.0.0.254 as=64500"},
		"--peer: no peer is named":        {"--check", "--as", "64512"},
		"as is missing":                   {"--check", "--as", "64512", "--peer", "10.0.0.254"},
		"quote what follows --peer":       {"--check", "--as", "64512", "--peer", "10.0.0.254", "as=64500"},
		"there are two of them":           append(good, "--peer", "10.0.0.254 as=64501"),
		`--dir "bgp" is no absolute path`: append(good, "--dir", "bgp"),
		"unknown flag":                    {"--asn", "1"},
	} {
		cmd := command()
		cmd.SetArgs(args)
		cmd.SetOut(new(bytes.Buffer))
		err := cmd.ExecuteContext(t.Context())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v instead of %q", args, err, want)
		}
	}
}

// TestSize: what makes it much larger is a new dependency.
func TestSize(t *testing.T) {
	st, err := os.Stat(filepath.Join(os.Getenv("CORACLE_BIN"), "coracle-bgp"))
	if err != nil {
		t.Fatal(err)
	}
	if st.Size() > size {
		t.Errorf("coracle-bgp has %d bytes, at most %d are allowed", st.Size(), size)
	}
}
