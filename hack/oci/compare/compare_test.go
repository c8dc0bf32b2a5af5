//go:build oci

// Package compare runs one and the same scripts on coracle-oci and on runc, and compares
// what both print and how they end. What a script asserts holds for both, so a script
// that is wrong about runc fails, too. `make test-oci` builds both and runs it.
package compare

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// runtimes are ours, on its own engine and on libcontainer, and the reference, which is
// the last; below the directory of binaries.
var runtimes = []string{"coracle-oci", "coracle-oci-lc", "runc"}

func TestMain(m *testing.M) { testscript.Main(runtimetest.Tests(m.Run), nil) }

// TestLikeRunc runs the scripts of testdata/every once per runtime. In a script, $BOX is a
// bundle, $ID an id and $ROOT the state directory. Commands:
//
//	bundle [PATCH] -- ARG...   write config.json, changed by a JSON merge patch
//	oci ARG...                 run the runtime; `!` wants it to fail
//	quiet ARG...               the same with no streams to keep: for what goes on running
//	record FILE                compare this file, too
//	keys FILE                  compare the keys of this JSON file
//
// Exit statuses and standard output of both have to be equal, where ids, pids, times and
// paths may differ.
func TestLikeRunc(t *testing.T) {
	transcripts := map[string]*transcript{}
	for _, name := range runtimes {
		bin := find(t, name)
		tr := &transcript{scripts: map[string]*strings.Builder{}}
		transcripts[name] = tr
		t.Run(name, func(t *testing.T) {
			testscript.Run(t, testscript.Params{
				Dir:   "testdata/every",
				Setup: func(env *testscript.Env) error { return setup(env, bin, tr) },
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"bundle": writeBundle, "oci": oci, "quiet": quiet, "record": record, "keys": keys,
				},
			})
		})
	}
	if t.Failed() {
		return
	}
	if len(transcripts[runtimes[0]].scripts) == 0 {
		t.Fatal("no script was run")
	}
	reference := runtimes[len(runtimes)-1]
	for _, name := range runtimes[:len(runtimes)-1] {
		for script, ours := range transcripts[name].scripts {
			theirs := transcripts[reference].scripts[script]
			if theirs == nil {
				t.Fatalf("%s was not run on %s", script, reference)
			}
			if diff := cmp.Diff(strings.Split(theirs.String(), "\n"), strings.Split(ours.String(), "\n")); diff != "" {
				t.Errorf("%s: - is %s, + is %s:\n%s", script, reference, name, diff)
			}
		}
	}
}

func find(t *testing.T, name string) string {
	dir := os.Getenv("CORACLE_OCI_BIN")
	if dir == "" {
		t.Fatal("CORACLE_OCI_BIN has to name the directory with coracle-oci and runc; `make test-oci` makes it")
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// transcript is what one runtime printed, by script.
type transcript struct {
	mu      sync.Mutex
	scripts map[string]*strings.Builder
}

// script is one script's part, a value of the testscript's environment.
type script struct {
	bin string
	out *strings.Builder
	env *testscript.Env
}

type scriptKey struct{}

func setup(env *testscript.Env, bin string, tr *transcript) error {
	name := strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")
	box := filepath.Join(env.WorkDir, "box")
	if err := runtimetest.MakeRootfs(filepath.Join(box, "rootfs")); err != nil {
		return err
	}
	id := fmt.Sprintf("cmp-%d-%s", os.Getpid(), name)
	root := filepath.Join(env.WorkDir, "state")
	if err := os.Mkdir(root, 0o700); err != nil {
		return err
	}
	env.Setenv("BOX", box)
	env.Setenv("ID", id)
	env.Setenv("ROOT", root)
	env.Setenv("OCI", bin)
	// criu may be next to the runtimes.
	env.Setenv("PATH", filepath.Dir(bin)+":"+env.Getenv("PATH"))
	s := &script{bin: bin, out: &strings.Builder{}, env: env}
	env.Values[scriptKey{}] = s
	tr.mu.Lock()
	tr.scripts[name] = s.out
	tr.mu.Unlock()
	env.Defer(func() {
		list, _ := exec.Command(bin, "--root", root, "list", "-q").Output()
		for left := range strings.FieldsSeq(string(list)) {
			env.T().Log("the script left container " + left)
			_ = exec.Command(bin, "--root", root, "delete", "--force", left).Run()
		}
	})
	return nil
}

func oci(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value(scriptKey{}).(*script)
	err := ts.Exec(s.bin, append([]string{"--root", ts.Getenv("ROOT")}, args...)...)
	s.record(ts, args, err, ts.ReadFile("stdout"))
	judge(ts, neg, err)
}

func quiet(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value(scriptKey{}).(*script)
	cmd := exec.Command(s.bin, append([]string{"--root", ts.Getenv("ROOT")}, args...)...)
	cmd.Dir, cmd.Env = ts.MkAbs("."), s.env.Vars
	err := cmd.Run()
	s.record(ts, args, err, "")
	judge(ts, neg, err)
}

func record(ts *testscript.TestScript, _ bool, args []string) {
	s := ts.Value(scriptKey{}).(*script)
	fmt.Fprintf(s.out, "= %s\n%s", args[0], s.plain(ts, ts.ReadFile(args[0])))
}

func keys(ts *testscript.TestScript, _ bool, args []string) {
	s := ts.Value(scriptKey{}).(*script)
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &v))
	fmt.Fprintf(s.out, "= keys of %s\n", args[0])
	printKeys(s.out, "", v)
}

// printKeys leaves elements of lists out: those depend on the moment.
func printKeys(w io.Writer, path string, v any) {
	m, ok := v.(map[string]any)
	if !ok {
		fmt.Fprintln(w, path)
		return
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if k == "annotations" {
			continue // whose keys are each runtime's own
		}
		printKeys(w, path+"/"+k, m[k])
	}
}

func judge(ts *testscript.TestScript, neg bool, err error) {
	_, ended := errors.AsType[*exec.ExitError](err)
	switch {
	case err != nil && !ended:
		ts.Check(err)
	case err != nil && !neg:
		ts.Fatalf("unexpected failure: %v", err)
	case err == nil && neg:
		ts.Fatalf("unexpected success")
	}
}

func (s *script) record(ts *testscript.TestScript, args []string, err error, stdout string) {
	if strings.HasPrefix(stdout, "Incorrect Usage") {
		stdout = "" // runc shows its help there
	}
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	}
	fmt.Fprintf(s.out, "$ %s\n%s[%d]\n", s.plain(ts, strings.Join(args, " ")), s.plain(ts, stdout), code)
}

var varying = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z?`), "TIME"},
	{regexp.MustCompile(`\b[A-Z][a-z]{2} +\d+ \d\d:\d\d\b`), "TIME"}, // of ls
	{regexp.MustCompile(`("pid": ?)[1-9]\d*`), "${1}PID"},
	{regexp.MustCompile(`\b[1-9]\d{2,}\b`), "NUMBER"},
	// Columns are as wide as the longest pid.
	{regexp.MustCompile(` +`), " "},
	{regexp.MustCompile(`(?m)^ `), ""},
	{regexp.MustCompile(`\n+$`), "\n"},
}

// plain takes out what differs each time.
func (s *script) plain(ts *testscript.TestScript, text string) string {
	text = strings.ReplaceAll(text, ts.Getenv("WORK"), "WORK")
	text = strings.ReplaceAll(text, ts.Getenv("ID"), "ID")
	for _, v := range varying {
		text = v.what.ReplaceAllString(text, v.with)
	}
	if text != "" && !strings.HasSuffix(text, "\n") && strings.Contains(text, "\n") {
		text += "\n"
	}
	return text
}

// writeBundle writes config.json of $BOX.
func writeBundle(ts *testscript.TestScript, _ bool, args []string) {
	patch := "{}"
	if len(args) > 0 && args[0] != "--" {
		patch, args = args[0], args[1:]
	}
	if len(args) > 0 {
		args = args[1:]
	}
	data, err := json.Marshal(runtimetest.Spec(ts.Getenv("ID"), args...))
	ts.Check(err)
	var spec, change any
	ts.Check(json.Unmarshal(data, &spec))
	ts.Check(json.Unmarshal([]byte(patch), &change))
	data, err = json.Marshal(merge(spec, change))
	ts.Check(err)
	ts.Check(os.WriteFile(filepath.Join(ts.Getenv("BOX"), "config.json"), data, 0o644))
}

// merge applies a JSON merge patch (RFC 7396).
func merge(to, patch any) any {
	p, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	m, ok := to.(map[string]any)
	if !ok {
		m = map[string]any{}
	}
	for k, v := range p {
		if v == nil {
			delete(m, k)
		} else {
			m[k] = merge(m[k], v)
		}
	}
	return m
}
