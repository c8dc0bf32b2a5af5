package main

import (
	"io"
	"log"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMain keeps the results that the tests make out of the output, in which results are counted.
func TestMain(m *testing.M) {
	log.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// The paths of targets.txt exist, and make has the targets.
func TestTargets(t *testing.T) {
	t.Chdir("../..")
	targets, err := parseTargets(list)
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range targets {
		for _, p := range target.paths {
			if _, err := os.Stat(p); err != nil {
				t.Errorf("%s: %v", target.name, err)
			}
		}
		if !strings.Contains(string(makefile), "\n"+target.arguments[0]+": ") {
			t.Errorf("%s: no target %s in the Makefile", target.name, target.arguments[0])
		}
	}
}

// A target covers the files of this repository that its commands name, and what scripts among them
// source.
func TestCoverage(t *testing.T) {
	t.Chdir("../..")
	targets, err := parseTargets(list)
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`(?:^|[\s=(/])((?:cmd|integration|hack|packaging|network)/[\w./-]*\w)`)
	sourced := regexp.MustCompile(`(?m)^ *# shellcheck source=(hack/\S+)`)
	for _, target := range targets {
		if target.name == "test" { // everything; and make -n would run the parts' make
			continue
		}
		out, err := exec.CommandContext(t.Context(), "make", append([]string{"-n", "--no-print-directory"}, target.arguments...)...).Output()
		if err != nil {
			t.Fatalf("make -n %s: %v", target.arguments, err)
		}
		needs := []string{"Makefile"}
		for _, m := range named.FindAllStringSubmatch(string(out), -1) {
			if s, err := os.Stat(m[1]); err != nil {
				continue // a directory of bin, or of cluster
			} else if needs = append(needs, m[1]); s.IsDir() {
				continue
			}
			script, err := os.ReadFile(m[1])
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range sourced.FindAllStringSubmatch(string(script), -1) {
				needs = append(needs, m[1])
			}
		}
		slices.Sort(needs)
		for _, file := range slices.Compact(needs) {
			if !slices.ContainsFunc(target.paths, func(p string) bool { return file == p || strings.HasPrefix(file, p+"/") }) {
				t.Errorf("%s uses %s, and does not cover it", target.name, file)
			}
		}
	}
}

// inEmptyDir changes to a directory of the test's own, and returns what runs git and writes a file
// there.
func inEmptyDir(t *testing.T) (git func(args ...string), write func(name, text string)) {
	t.Helper()
	t.Chdir(t.TempDir())
	git = func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.org"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	write = func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return git, write
}

// A page holds until a covered file changes, and says so afterwards.
func TestRunAndCheck(t *testing.T) {
	git, write := inEmptyDir(t)
	if err := os.Mkdir("docs", 0o755); err != nil {
		t.Fatal(err)
	}
	write("Makefile", "good:\n\t@echo '--- PASS: TestA (0.00s)'; echo '    --- PASS: TestA/sub'; echo '--- SKIP: TestB (0.00s)'\n"+
		"bad:\n\t@echo '--- FAIL: TestC (0.00s)'; exit $(CODE)\n")
	write("a.go", "package a\n")
	write("b.go", "package b\n")
	git("init", "-q")
	git("add", ".")
	git("commit", "-q", "-m", "first")
	targets, err := parseTargets("both: a.go b.go\n\ngood\tgood\ta.go\nbad\tbad CODE=1\tboth\nvm\tgood\ta.go\tneeds=STATUS_TEST_VM\n")
	if err != nil {
		t.Fatal(err)
	}
	fails := func(err error, want ...string) {
		t.Helper()
		if err == nil {
			t.Fatalf("no error, want %q", want)
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("error %q has no %q", err, w)
			}
		}
	}
	fails(check(targets), "good has not been run", "bad has not been run", "vm has not been run")
	fails(run(targets, nil), "failed: bad")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| `good` | passed | 1 | 0 | 1 |", "| `bad` | failed | 0 | 1 | 0 |", "## Not run yet\n\n- `vm`\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page has no %q:\n%s", want, text)
		}
	}
	fails(check(targets), "bad has failed")

	t.Setenv("STATUS_TEST_VM", "yes")
	targets[1].arguments[1] = "CODE=0"
	for _, name := range []string{"vm", "bad"} {
		if err := run(targets, []string{name}); err != nil {
			t.Fatal(err)
		}
	}
	write("docs/crash-matrix.md", "written by a target\n")
	git("add", ".")
	git("commit", "-q", "-m", "second")
	if err := check(targets); err != nil {
		t.Error(err)
	}

	write("b.go", "package b // changed\n")
	// It keeps the others from running no more than a failure does.
	if err := os.Remove("out/check/vm.log"); err != nil {
		t.Fatal(err)
	}
	fails(run(targets, []string{"bad", "vm"}), "bad: not run: commit first")
	if _, err := os.Stat("out/check/vm.log"); err != nil {
		t.Errorf("after a target that cannot run: %v", err)
	}
	git("commit", "-q", "-am", "third")
	err = check(targets)
	fails(err, "bad is outdated")
	if strings.Contains(err.Error(), "good") || strings.Contains(err.Error(), "vm") {
		t.Errorf("the change of b.go outdates others: %v", err)
	}
	fails(run(targets, []string{"god"}), `no target "god"`)
	git("rm", "-q", "b.go")
	git("commit", "-q", "-m", "fourth")
	fails(check(targets), "b.go is not in this commit")
}

// A run counts only for files that are in the commit, and stay as they are.
func TestOnlyCommits(t *testing.T) {
	git, write := inEmptyDir(t)
	for _, dir := range []string{"docs", "a"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const commit = "git -c user.name=a -c user.email=a@example.org commit -q -am during"
	write("Makefile", "good:\nedit:\n\techo '// edited' >>a/a.go\nadd:\n\techo package a >a/b.go\n"+
		"commit:\n\techo '// committed' >>a/a.go; "+commit+"\nfail:\n\techo package a >a/b.go; exit 1\n")
	write("a/a.go", "package a\n")
	write("docs/security.md", "read by a test\n")
	write(".gitignore", "/out/\n")
	git("init", "-q")
	git("add", ".")
	git("commit", "-q", "-m", "first")
	targets, err := parseTargets("all\tgood\t.\nedit\tedit\ta\nadd\tadd\ta\ncommit\tcommit\ta\nfail\tfail\ta\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := run(targets, []string{"all"}); err != nil {
		t.Fatal(err)
	}
	write("a/b.go", "package a\n")
	if err := run(targets, []string{"all"}); err == nil || !strings.Contains(err.Error(), "?? a/b.go") {
		t.Errorf("with an untracked file: %v", err)
	}
	// Tests that are not committed are compiled into no program.
	write("a/c_test.go", "package a\n")
	programs := target{name: "programs", arguments: []string{"good"}, paths: []string{"a"}, programs: true}
	if _, err := programs.cleanTree(); err == nil || strings.Contains(err.Error(), "c_test.go") || !strings.Contains(err.Error(), "a/b.go") {
		t.Errorf("programs, with an untracked file and a test: %v", err)
	}
	git("clean", "-qf", "a")
	for name, want := range map[string]string{"edit": "M a/a.go", "add": "?? a/b.go", "commit": "run it again"} {
		err := run(targets, []string{name})
		if err == nil || !strings.Contains(err.Error(), "changed during the run") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
		git("checkout", "-q", "a")
		git("clean", "-qf", "a")
	}
	// A failure is one, whatever it has left.
	if err := run(targets, []string{"fail"}); err == nil || !strings.Contains(err.Error(), "failed: fail") {
		t.Errorf("fail: %v", err)
	}
	rows, err := readPage(page)
	if err != nil || len(rows) != 2 || rows["all"].result != "passed" || rows["fail"].result != "failed" {
		t.Errorf("rows: %v, %v", rows, err)
	}

	git("clean", "-qf", "a")
	if err := run(targets, []string{"all"}); err != nil { // "commit" has changed its files
		t.Fatal(err)
	}
	write("docs/security.md", "changed\n")
	git("commit", "-q", "-am", "second")
	if err := check(targets); err == nil || !strings.Contains(err.Error(), "all is outdated") {
		t.Errorf("after a change of a page that a test reads: %v", err)
	}
}

// Tests of packages and tools of other targets outdate no row of a target that runs programs. Tests
// in integration directories do.
func TestProgramsAreCovered(t *testing.T) {
	targets, err := parseTargets("all\ttest\t.\nprograms\ttest\t.\tneeds=X\tprograms\noracle\toracle\tcluster cluster/oracle\tprograms\n" +
		"oci\ttest-oci\thack/oci hack/oci/compare\tprograms\ttests=hack/oci/compare\nbats\ttest-bats\thack/oci\tprograms\n" +
		"scale\ttest-scale\tintegration\tprograms\ttests=integration\n")
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]bool{
		"a/a.go": true, "a/testdata/page.txt": true, "integration/start_test.go": false, "integration/weights.txt": true,
		"cluster/integration/chaos_test.go":    true,
		"integration/crashmatrix/cell_test.go": false, "cluster/integration/nodes/nodes_test.go": false,
		"integration/exitcodes/exitcodes.go": true, "cluster/integration/coraclecmd/run.go": true,
		"a/a_test.go": false, "a/testdata/fuzz/FuzzA/1": false,
		"cluster/oracle/known.txt": false, "cluster/bench/proxy/proxy.go": false, "cluster/controllers/internal/apitest/server.go": false,
		"cluster/benchmark.go": true,
	} {
		if got := targets[1].covers(file); got != want {
			t.Errorf("%s outdates a target of programs: %t", file, got)
		}
		if !targets[0].covers(file) {
			t.Errorf("%s does not outdate a target that covers all", file)
		}
	}
	fuzz := target{name: "fuzz", paths: []string{"a"}}
	if fuzz.covers("a/testdata/fuzz/FuzzA/1") || !fuzz.covers("a/a_test.go") {
		t.Error("fuzz covers the inputs that it finds, or not its functions")
	}
	for i, want := range []bool{true, false} {
		if of := targets[3+i]; of.covers("hack/oci/compare/compare_test.go") != want {
			t.Errorf("%s covers the tests that compare: %t", of.name, !want)
		}
	}
	if own := targets[5]; !own.covers("integration/start_test.go") || own.covers("integration/kube/kube_test.go") {
		t.Error("a target that runs tests of the package integration does not cover them, or covers others")
	}
	if named := targets[2]; !named.covers("cluster/oracle/known.txt") || named.covers("cluster/bench/proxy/proxy.go") {
		t.Error("a target that names a tool covers another, or not that one")
	}
	if !targets[1].programs || targets[1].needs != "X" {
		t.Errorf("%+v", targets[1])
	}
	if _, err := parseTargets("a\ttest\t.\tprogram\n"); err == nil || !strings.Contains(err.Error(), `unknown "program"`) {
		t.Errorf("an unknown option: %v", err)
	}
}

func TestCount(t *testing.T) {
	for _, c := range []struct {
		name, output string
		want         counts
	}{
		{"nothing", "built\n", counts{}},
		{"go", "--- PASS: TestA (0.01s)\n    --- FAIL: TestA/x (0.00s)\n--- FAIL: TestB (0.00s)\nok  \tpkg\t0.1s\n", counts{1, 1, 0}},
		{"tap", "1..3\nok 1 runs\nnot ok 2 stops\nok 3 freezes # skip no freezer\n", counts{1, 1, 1}},
		{"ginkgo", "\x1b[1mPASS\x1b[0m! -- \x1b[32m\x1b[1m120 Passed\x1b[0m | \x1b[91m2 Failed\x1b[0m | 0 Pending | 9 Skipped\n", counts{120, 2, 9}},
		{"a sentence", "policy: 12 passed, 1 failed in 3 s\n", counts{12, 1, 0}},
	} {
		if got := count(c.output); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestDamagedPage(t *testing.T) {
	for _, text := range []string{"| `a` | passed | 1 |\n", "| `a` | passed | x | 0 | 0 | c | t | m |\n"} {
		if _, err := parsePage(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}
