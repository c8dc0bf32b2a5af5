package shimv2

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"google.golang.org/protobuf/proto"
)

func TestParseStart(t *testing.T) {
	message := func(version int32, address, protocol string) string {
		b, err := proto.Marshal(&bootstrap.BootstrapResult{Version: version, Address: address, Protocol: protocol})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for name, c := range map[string]struct {
		out, address, err string
		version           int32
	}{
		"address alone":       {out: "unix:///run/containerd/s/abc\n", address: "/run/containerd/s/abc", version: 2},
		"path alone":          {out: "/run/containerd/s/abc", address: "/run/containerd/s/abc", version: 2},
		"JSON, version 2":     {out: `{"version":2,"address":"unix:///s","protocol":"ttrpc"}`, address: "/s", version: 2},
		"JSON, version 3":     {out: " {\"version\":3,\"address\":\"unix:///s\",\"protocol\":\"ttrpc\"}\n", address: "/s", version: 3},
		"message":             {out: message(3, "unix:///run/s", "ttrpc"), address: "/run/s", version: 3},
		"nothing":             {out: "", err: "it speaks version 0 of the Task API; 2 and 3 are supported"},
		"text":                {out: "hello", err: "it printed no address"},
		"broken JSON":         {out: "{", err: "it printed no address"},
		"future version":      {out: `{"version":4,"address":"unix:///s","protocol":"ttrpc"}`, err: "it speaks version 4"},
		"gRPC":                {out: `{"version":3,"address":"unix:///s","protocol":"grpc"}`, err: `it speaks "grpc"; only ttrpc is supported`},
		"a virtual machine's": {out: message(3, "vsock://2:1024", "ttrpc"), err: `its address "vsock://2:1024" is not a unix socket`},
		"relative":            {out: `{"version":2,"address":"s.sock","protocol":"ttrpc"}`, err: "is not a unix socket"},
	} {
		t.Run(name, func(t *testing.T) {
			res, err := parseStart([]byte(c.out))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error is %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || res.Address != c.address || res.Version != c.version {
				t.Errorf("%v, %v", res, err)
			}
		})
	}
}

func FuzzParseStart(f *testing.F) {
	for _, seed := range []string{"unix:///s", `{"version":3,"address":"unix:///s","protocol":"ttrpc"}`, "\x08\x03\x12\x02/s", ""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, out []byte) {
		res, err := parseStart(out)
		if err == nil && (!strings.HasPrefix(res.Address, "/") || res.Version < 2 || res.Version > 3) {
			t.Errorf("%q gives %v", out, res)
		}
	})
}

// A program that writes without end takes little memory, and its error stays readable.
func TestActionThatSaysTooMuch(t *testing.T) {
	dir := t.TempDir()
	e, err := New(Config{StateDir: filepath.Join(dir, "state"), RootDir: filepath.Join(dir, "root")})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(e.bundleDir("x"), 0o700); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "shim")
	for name, tc := range map[string]struct{ script, start, end string }{
		"and succeeds":           {"echo /run/socket; head -c 3000000 /dev/zero", "/run/socket\n", ""},
		"and fails":              {"echo no boat today >&2; head -c 3000000 /dev/zero >&2; exit 1", "shim start: exit status 1: no boat today\n", ""},
		"and says why at last":   {"head -c 3000000 /dev/zero >&2; echo no boat today >&2; exit 1", "shim start: exit status 1: ", "no boat today"},
		"a little over the ends": {"head -c 65537 /dev/zero >&2; exit 1", "shim start: exit status 1: ", "\x00"},
	} {
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+tc.script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		out, err := e.action(t.Context(), program, "x", "start", nil)
		said := string(out)
		if err != nil {
			said = err.Error()
		}
		if !strings.HasPrefix(said, tc.start) || !strings.HasSuffix(said, tc.end) || len(said) > 3*maxEnd {
			t.Errorf("%s: %d bytes, %.60q", name, len(said), said)
		}
	}
}
