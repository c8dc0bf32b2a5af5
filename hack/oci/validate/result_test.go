package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		output string
		code   int
		says   string
		ok     bool
	}{
		"all well":        {"TAP version 13\nok 1 - a\nok 2 # SKIP b\n1..2\n", 0, "2 ok", true},
		"one fails":       {"ok 1 - a\nnot ok 2 - b\n# expect: c\n", 0, "1 ok, 1 not", false},
		"ends early":      {"ok 1 - a\n", 1, "1 ok, exit 1", false},
		"a silent error":  {"TAP version 13\n  ---\n  {\n    \"error\": \"late\"\n  }\n  ...\n1..0\n", 0, "0 ok, 1 not", false},
		"a wanted error":  {"ok 1 - a\n  ---\n  {\n    \"error\": \"exit status 1\"\n  }\n  ...\n", 0, "1 ok", true},
		"says nothing":    {"TAP version 13\n1..0\n", 0, "0 ok", true},
		"without a title": {"not ok\n", 0, "0 ok, 1 not", false},
	} {
		r := parse([]byte(c.output), c.code)
		if r.String() != c.says || r.ok() != c.ok {
			t.Errorf("%s: %s, ok %v; want %s, ok %v", name, r, r.ok(), c.says, c.ok)
		}
	}
}

func TestTroubles(t *testing.T) {
	r := parse([]byte("ok 1 - a\n  ---\n  fine\n  ...\nnot ok 2 - b\n  ---\n  bad\n"), 0)
	if got, want := r.troubles(), "not ok 2 - b\n  ---\n  bad\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestJudge(t *testing.T) {
	refused, none := parse([]byte("not ok 1 - exit status 1\n"), 0), parse(nil, 1)
	good, bad := parse([]byte("ok 1 - a\n"), 0), parse([]byte("not ok 1 - a\n"), 0)
	other, exit := parse([]byte("not ok 1 - b\n"), 0), parse([]byte("not ok 1 - a\n"), 1)
	known := &exception{why: "because"}
	for name, c := range map[string]struct {
		ours, reference result
		known           *exception
		ok              bool
	}{
		"both pass":               {good, good, nil, true},
		"ours alone passes":       {good, bad, nil, true},
		"both fail, listed":       {bad, bad, known, true},
		"both fail, not listed":   {bad, bad, nil, false},
		"ours alone fails":        {bad, good, known, false},
		"ours fails another one":  {bad, other, known, false},
		"ours ends with an error": {exit, bad, known, false},
		"runc makes none":         {bad, none, known, true},
		"runc made none":          {bad, refused, known, true},
		"listed, but passes":      {good, good, known, true},
	} {
		if verdict, ok := judge(c.ours, c.reference, c.known); ok != c.ok {
			t.Errorf("%s: %q, %v", name, verdict, ok)
		}
	}
}

func TestReadExceptions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "exceptions")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# comment\n\na | 1 not | why\n")
	got, err := readExceptions(path)
	if err != nil || len(got) != 1 || *got["a"] != (exception{"1 not", "why"}) {
		t.Errorf("got %v, %v", got, err)
	}
	for text, says := range map[string]string{
		"a | why\n":                   ":1: 2 fields",
		"a | 1 | b\n# c\na | 1 | d\n": ":3: duplicate a",
	} {
		write(text)
		if _, err := readExceptions(path); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: error %v, want %q", text, err, says)
		}
	}
	if _, err := readExceptions(path + "-not"); err == nil {
		t.Error("no error for a file that is not there")
	}
}
