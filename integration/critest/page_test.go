package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMerge(t *testing.T) {
	host, guest := machine{kernel: "6.18", arch: "amd64"}, machine{kernel: "6.1", arch: "amd64", unified: true, systemd: true, armor: true}
	odd := []result{{"odd", skipped, "no AppArmor"}}
	good := []result{{"good", passed, ""}}
	page := merge("", "# Old\n", part(host, odd))
	page = merge(page, "# New\n", part(guest, good))
	if want := "# New\n\n" + part(host, odd) + "\n" + part(guest, good); page != want {
		t.Errorf("two parts:\n%s\nnot\n%s", page, want)
	}
	// Another kernel is the same part.
	host.kernel = "6.19"
	page = merge(page, "# New\n", part(host, good))
	if want := "# New\n\n" + part(host, good) + "\n" + part(guest, good); page != want {
		t.Errorf("replaced:\n%s\nnot\n%s", page, want)
	}
}

func TestPart(t *testing.T) {
	got := part(machine{kernel: "6.1", arch: "arm64", runtime: "coracled 1.2.3", unified: true},
		[]result{{"a", passed, ""}, {"b", failed, "broken"}, {"c", skipped, "odd"}})
	for _, want := range []string{
		"## cgroup v2, driver cgroupfs, no AppArmor\n", "| 1 | 1 | 1 |", "Linux 6.1, arm64.\nRuntime: coracled 1.2.3.\n",
		"### Failed\n\n- b: broken\n", "### Skipped\n\n- c: odd\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// The page shows another runtime's part next to ours.
func TestPeersPart(t *testing.T) {
	ours, theirs := machine{kernel: "6.1"}, machine{kernel: "6.1", runtime: "containerd 2.4.2 with runc 1.5.2", peer: true}
	good := []result{{"good", passed, ""}}
	page := merge(merge("", "# CRI\n", part(ours, good)), "# CRI\n", part(theirs, good))
	if !strings.Contains(page, part(ours, good)) || !strings.HasSuffix(page, part(theirs, good)) {
		t.Errorf("page is\n%s", page)
	}
	for _, want := range []string{
		"## cgroup v1, driver cgroupfs, no AppArmor: containerd, to compare with\n",
		"Runtime: containerd 2.4.2 with runc 1.5.2.\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}

// What a guest says has its part at the end.
func TestTakePart(t *testing.T) {
	dir := t.TempDir()
	said, page := filepath.Join(dir, "said"), filepath.Join(dir, "page.md")
	mine := part(machine{systemd: true}, []result{{"good", passed, ""}})
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(said, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("critest: 1 passed\n" + mine)
	if err := takePart(page, said); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(page); err != nil || !strings.HasSuffix(string(got), "\n\n"+mine) ||
		strings.Contains(string(got), "1 passed\n") {
		t.Errorf("%s, %v", got, err)
	}
	for _, bad := range []string{"", "critest: no report\n", mine + mine} {
		write(bad)
		if err := takePart(page, said); err == nil {
			t.Errorf("takePart of %q: no error", bad)
		}
	}
}
