package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
)

// The Debian package can be installed, installed again, removed and purged; an administrator's
// settings stay until the last, and nothing does after it.
func TestDebianPackage(t *testing.T) {
	bin := filepath.Dir(testkit.Bin(t, "coracled"))
	dir := t.TempDir()
	out, root := filepath.Join(dir, "out"), filepath.Join(dir, "root")
	run := func(env []string, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Env = append(os.Environ(), env...)
		said, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, said)
		}
		return string(said)
	}
	run([]string{"BIN=" + bin, "COMPRESSION=none"}, "../packaging/build.sh", out)
	packages, err := filepath.Glob(filepath.Join(out, "coracle_*.deb"))
	if err != nil || len(packages) != 1 {
		t.Fatalf("packages: %q, %v", packages, err)
	}
	kube, _ := filepath.Glob(filepath.Join(out, "coracle-kube_*.deb"))
	version := strings.TrimSpace(run(nil, "dpkg-deb", "-f", packages[0], "Version"))
	if len(kube) != 1 || !strings.Contains(run(nil, "dpkg-deb", "-f", kube[0], "Depends"), "coracle (= "+version+")") {
		t.Errorf("coracle-kube: %q", kube)
	}

	// A system of its own; scripts run outside of it, as they do when one is made from scratch.
	for _, d := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "etc/systemd/system"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"status", "available"} {
		if err := os.WriteFile(filepath.Join(root, "var/lib/dpkg", f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dpkg := func(args ...string) {
		t.Helper()
		run(nil, "dpkg", append([]string{"--root=" + root, "--force-script-chrootless", "--force-depends", "--force-unsafe-io"}, args...)...)
	}
	in := func(path string) string { return filepath.Join(root, path) }

	dpkg("-i", packages[0], kube[0])
	if said := run(nil, in("usr/bin/coracled"), "config", "check", in("etc/coracle/config.toml")); !strings.HasSuffix(said, ": ok\n") {
		t.Errorf("the configuration: %s", said)
	}
	run(nil, in("usr/bin/coracled"), "config", "check", in("usr/share/doc/coracle/examples/config.toml"))
	for _, want := range []struct{ file, text string }{
		{"usr/lib/systemd/system/coracled.service", "ExecStart=/usr/bin/coracled\n"},
		{"usr/lib/systemd/system/coracled.service", "Type=notify\n"},
		{"usr/lib/systemd/system/coracle.service", "ExecStart=/usr/bin/coracle up\n"},
		{"usr/share/doc/coracle/examples/crictl.yaml", "runtime-endpoint: unix:///run/coracle/coracle.sock"},
		{"usr/share/bash-completion/completions/coracle", "__start_coracle"},
		{"usr/share/zsh/vendor-completions/_coracled", "#compdef coracled"},
	} {
		text, err := os.ReadFile(in(want.file))
		if err != nil || !strings.Contains(string(text), want.text) {
			t.Errorf("%s has no %q: %v", want.file, want.text, err)
		}
	}
	for page, text := range map[string]string{
		"coracle": "coracle logs", "coracled": "config check",
		"coracle-oci-libcontainer": "checkpoint",
	} {
		if said := run(nil, "gzip", "-dc", in("usr/share/man/man8/"+page+".8.gz")); !strings.Contains(strings.ReplaceAll(said, `\-`, "-"), text) {
			t.Errorf("%s(8) has no %q", page, text)
		}
	}
	if _, err := os.Lstat(in("etc/systemd/system/multi-user.target.wants/coracled.service")); err != nil {
		t.Errorf("not enabled: %v", err)
	}

	// A cluster starts at boot only if an administrator says so.
	if _, err := os.Lstat(in("etc/systemd/system/multi-user.target.wants/coracle.service")); err == nil {
		t.Error("the cluster's unit is enabled")
	}
	dpkg("-P", "coracle-kube")

	settings := in("etc/coracle/config.toml")
	if err := os.WriteFile(settings, []byte("root = \"/srv/coracle\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	dpkg("-i", packages[0])
	dpkg("-r", "coracle")
	if text, err := os.ReadFile(settings); err != nil || string(text) != "root = \"/srv/coracle\"\n" {
		t.Errorf("settings after a removal: %q, %v", text, err)
	}
	if err := os.MkdirAll(in("var/lib/coracle/images"), 0o755); err != nil {
		t.Fatal(err)
	}
	dpkg("-P", "coracle")
	left, err := exec.CommandContext(t.Context(), "find", root, "-name", "*coracle*", "-not", "-path", "*/dpkg/*").Output()
	if err != nil || len(left) > 0 {
		t.Errorf("after a purge: %s, %v", left, err)
	}
}

// Regression: a purge deleted the data of a cluster that ran, and those of claims.
func TestPurgeOfThePackage(t *testing.T) {
	for what, test := range map[string]struct {
		held, volume string
		want         string // "" if the data go
	}{
		"nothing uses the data": {},
		"coracled runs":         {held: "lock", want: "/run/coracle/lock uses it: end that first; to delete it: rm -rf"},
		"a supervisor runs":     {held: "kube.lock", want: "/run/coracle/kube.lock uses it"},
		"a claim has data":      {volume: "kube/local-path/volumes/pvc-1", want: "the data of claims are in "},
		"a further node has some": {
			volume: "nodes/2/kube/local-path/volumes/pvc-1", want: "nodes/2/kube/local-path/volumes; to delete it: rm -rf",
		},
		"no claim has data": {volume: "kube/local-path/volumes"},
	} {
		t.Run(what, func(t *testing.T) {
			root := t.TempDir()
			data, state := filepath.Join(root, "var/lib/coracle"), filepath.Join(root, "run/coracle")
			for _, dir := range []string{filepath.Join(data, "images"), filepath.Join(data, test.volume), state} {
				if err := os.MkdirAll(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range []string{"lock", "kube.lock"} { // a lock that no one holds is left there
				lockFile(t, filepath.Join(state, name), name == test.held)
			}
			said, err := purge(t, "postrm", root)
			if err != nil || !strings.Contains(string(said), test.want) || strings.Contains(string(said), "is left alone") != (test.want != "") {
				t.Errorf("it said %q, %v, want %q", said, err, test.want)
			}
			if _, err := os.Stat(filepath.Join(data, "images")); (err == nil) != (test.want != "") {
				t.Errorf("the data after it: %v", err)
			}
		})
	}
}

// Regression: a purge unmounted the volumes in memory of pods that ran.
func TestPurgeOfTheClustersPackage(t *testing.T) {
	for _, runs := range []bool{false, true} {
		t.Run(fmt.Sprintf("a supervisor runs %t", runs), func(t *testing.T) {
			root := t.TempDir()
			volume, state := filepath.Join(root, "var/lib/coracle/kube/kubelet/pods/1/volumes/secret"), filepath.Join(root, "run/coracle")
			for _, dir := range []string{volume, state} {
				if err := os.MkdirAll(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			lockFile(t, filepath.Join(state, "kube.lock"), runs)
			if err := unix.Mount("tmpfs", volume, "tmpfs", 0, "size=64k"); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Unmount(volume, unix.MNT_DETACH) }()
			if said, err := purge(t, "kube-postrm", root); err != nil {
				t.Errorf("%v: %s", err, said)
			}
			if mounted, err := mountinfo.Mounted(volume); err != nil || mounted != runs {
				t.Errorf("the volume is mounted: %t, %v", mounted, err)
			}
		})
	}
}

// lockFile makes a lock file, which is held until the test ends if held says so.
func lockFile(t *testing.T, path string, held bool) {
	t.Helper()
	lock, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	if held {
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
	}
}

// purge runs a package's script as dpkg does for a purge below root, and returns what it said.
func purge(t *testing.T, script, root string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "../packaging/"+script, "purge")
	cmd.Env = []string{"DPKG_ROOT=" + root, "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	return cmd.CombinedOutput()
}
