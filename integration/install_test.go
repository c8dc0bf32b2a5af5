package integration

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// The installer of a release installs what matches SHA256SUMS, replaces an older version, and
// leaves nothing behind when it uninstalls. The programs of this release are a script that says
// what it is asked to do.
func TestInstallScript(t *testing.T) {
	script, err := os.ReadFile("../packaging/install.sh")
	if err != nil {
		t.Fatal(err)
	}
	prefix := filepath.Join(t.TempDir(), "usr")
	asked := filepath.Join(t.TempDir(), "asked")
	run := func(dir string, args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "sh", append([]string{filepath.Join(dir, "install.sh")}, args...)...).CombinedOutput()
		return string(out), err
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// release makes the directory of a version.
	release := func(version string, files map[string]string) (dir string) {
		t.Helper()
		dir = t.TempDir()
		name := "coracle-" + version + "-linux-" + runtime.GOARCH
		for path, text := range files {
			write(filepath.Join(dir, name, path), text)
		}
		archive := name + ".tar.gz"
		tar := exec.CommandContext(t.Context(), "tar", "-C", dir, "-czf", filepath.Join(dir, archive), name)
		if out, err := tar.CombinedOutput(); err != nil {
			t.Fatalf("tar: %v\n%s", err, out)
		}
		content, err := os.ReadFile(filepath.Join(dir, archive))
		if err != nil {
			t.Fatal(err)
		}
		write(filepath.Join(dir, "SHA256SUMS"), fmt.Sprintf("%x  %s\n", sha256.Sum256(content), archive))
		write(filepath.Join(dir, "install.sh"), strings.Replace(string(script), "version=VERSION", "version="+version, 1))
		return dir
	}
	coracled := fmt.Sprintf("#!/bin/sh\necho \"${0##*/} $@\" >>%s\n", asked)
	common := map[string]string{
		"bin/coracled": coracled, "bin/coracle": coracled, "share/doc/coracle/README.md": "read me",
		"lib/systemd/system/coracled.service": "ExecStart=/usr/bin/coracled\n",
		"lib/systemd/system/coracle.service":  "ExecStart=/usr/bin/coracle up\n",
	}
	first := map[string]string{"bin/coracle-old": "gone in the next version"}
	second := map[string]string{"share/man/man8/coracle.8": "manual"}
	for path, text := range common {
		first[path], second[path] = text, text
	}
	installed := func() (files []string) {
		t.Helper()
		err := filepath.WalkDir(prefix, func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				path, err = filepath.Rel(prefix, path)
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}

	one := release("v1.0.0", first)
	if out, err := run(one, "--prefix", "/"+prefix+"//"); err != nil || !strings.Contains(out, "Coracle v1.0.0 is in "+prefix) {
		t.Fatalf("install: %v\n%s", err, out)
	}
	for name, command := range map[string]string{"coracled": "coracled", "coracle": "coracle up"} {
		unit, err := os.ReadFile(filepath.Join(prefix, "lib/systemd/system", name+".service"))
		if err != nil || string(unit) != "ExecStart="+prefix+"/bin/"+command+"\n" {
			t.Errorf("the unit: %q, %v", unit, err)
		}
	}
	if s, err := os.Stat(filepath.Join(prefix, "bin/coracled")); err != nil || s.Mode().Perm() != 0o755 {
		t.Errorf("coracled: %v, %v", s, err)
	}

	// From another directory, as from a server.
	two := release("v1.1.0", second)
	alone := t.TempDir()
	write(filepath.Join(alone, "install.sh"), strings.Replace(string(script), "version=VERSION", "version=v1.1.0", 1))
	if out, err := run(alone, "--prefix", prefix, "--from", "file://"+two); err != nil {
		t.Fatalf("upgrade: %v\n%s", err, out)
	}
	want := []string{
		"bin/coracle", "bin/coracled", "lib/systemd/system/coracle.service", "lib/systemd/system/coracled.service",
		"share/doc/coracle/README.md", "share/doc/coracle/installed", "share/man/man8/coracle.8",
	}
	if got := installed(); !slices.Equal(got, want) {
		t.Errorf("after an upgrade: %q, want %q", got, want)
	}

	bad := release("v1.2.0", second)
	write(filepath.Join(bad, "coracle-v1.2.0-linux-"+runtime.GOARCH+".tar.gz"), "something else")
	if out, err := run(bad, "--prefix", prefix); err == nil || !strings.Contains(out, "does not match SHA256SUMS") {
		t.Errorf("a changed archive: %v\n%s", err, out)
	}
	if out, err := run(two, "--prefix", "usr"); err == nil || !strings.Contains(out, "not an absolute path") {
		t.Errorf("a relative prefix: %v\n%s", err, out)
	}
	if got := installed(); !slices.Equal(got, want) {
		t.Errorf("after refusals: %q, want %q", got, want)
	}

	// A systemd that knows one unit, in a mount namespace: this machine may have none.
	bin := t.TempDir()
	write(filepath.Join(bin, "systemctl"), `#!/bin/sh
case $* in
*FragmentPath*) echo "$UNIT" ;;
*ActiveState*) echo active ;;
*) echo "systemctl $@" >>`+asked+` ;;
esac
`)
	uninstall := func(unit string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-c",
			`mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec sh "$@"`, "sh", filepath.Join(alone, "install.sh"),
			"--uninstall", "--prefix", prefix+"/")
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "UNIT="+unit)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := uninstall("/usr/lib/systemd/system/coracled.service"); err == nil || !strings.Contains(out, "runs another coracled") {
		t.Errorf("with another coracled: %v\n%s", err, out)
	}
	if said, err := os.ReadFile(asked); !os.IsNotExist(err) {
		t.Errorf("with another coracled, programs were asked %q; %v", said, err)
	}
	write(filepath.Join(prefix, "share/doc/coracle/local.md"), "not ours")
	if out, err := uninstall(filepath.Join(prefix, "lib/systemd/system/coracled.service")); err != nil {
		t.Fatalf("uninstall: %v\n%s", err, out)
	}
	if got := installed(); !slices.Equal(got, []string{"share/doc/coracle/local.md"}) {
		t.Errorf("after a removal: %q", got)
	}
	const asks = "systemctl disable --now coracle.service\ncoracle down\n" +
		"systemctl disable --now coracled.service\ncoracled purge --stopped\nsystemctl daemon-reload\n"
	if said, err := os.ReadFile(asked); err != nil || string(said) != asks {
		t.Errorf("programs were asked %q, want %q; %v", said, asks, err)
	}
	if out, err := run(alone, "--uninstall", "--prefix", prefix); err == nil || !strings.Contains(out, "nothing is installed") {
		t.Errorf("a second removal: %v\n%s", err, out)
	}
}

// Removing the package ends no coracled but that of its unit.
func TestPackageRemoval(t *testing.T) {
	bin := t.TempDir()
	asked := filepath.Join(bin, "asked")
	if err := os.WriteFile(filepath.Join(bin, "coracled"), []byte("#!/bin/sh\necho coracled \"$@\" >>"+asked+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-c", "mount -t tmpfs none /run && exec sh ../packaging/prerm remove")
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "DPKG_ROOT=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("prerm: %v\n%s", err, out)
	}
	if said, err := os.ReadFile(asked); err != nil || string(said) != "coracled purge --stopped\n" {
		t.Errorf("programs were asked %q; %v", said, err)
	}
}

// release.sh resolves its directory where it is called, and refuses one with files that are not a
// release's. It runs on a copy of itself, so that an error cannot delete this repository.
func TestReleaseDirectory(t *testing.T) {
	script, err := os.ReadFile("../packaging/release.sh")
	if err != nil {
		t.Fatal(err)
	}
	repo := t.TempDir()
	if err := os.Mkdir(filepath.Join(repo, "packaging"), 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(repo, "packaging", "release.sh")
	if err := os.WriteFile(program, script, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		files []string
		fails string
	}{
		{"foreign file", []string{"letter"}, "is neither empty nor an earlier release"},
		{"no checksums", []string{"install.sh"}, "is neither empty nor an earlier release"},
		{"foreign file next to a release", []string{"SHA256SUMS", "install.sh", "letter"}, "is neither empty nor an earlier release"},
		// It goes on, and fails because the copy is not in a repository.
		{"release", []string{"SHA256SUMS", "install.sh", "coracle_1_amd64.deb", "coracle-v1-linux-amd64.tar.gz"}, "not a git repository"},
		{"empty", nil, "not a git repository"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range c.files {
				if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), program, "v2", ".")
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), c.fails) {
				t.Errorf("error %v, want %q:\n%s", err, c.fails, out)
			}
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) != len(c.files) {
				t.Errorf("left: %v, %v", entries, err)
			}
		})
	}
	if _, err := os.Stat(program); err != nil {
		t.Error(err)
	}
}
