package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// Regression: status printed what gRPC says of a connection.
func TestStatusIsInWords(t *testing.T) {
	for name, prepare := range map[string]func(state string){
		"never started": func(string) {},
		"killed": func(state string) {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(state, "coracle.sock")})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			l.Close()
		},
	} {
		state := t.TempDir()
		prepare(state)
		said := look(t.Context(), place{root: t.TempDir(), state: state})[0].Message
		if strings.Contains(said, "rpc error") || !strings.Contains(said, "it does not run") {
			t.Errorf("%s: %q", name, said)
		}
	}
}
