package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCertificateCommands(t *testing.T) {
	dir := t.TempDir()
	const list = `[{"file":"admin.kubeconfig","subject":"a","issuer":"coracle-ca","expires":"2020-01-01T00:00:00Z","warning":"it expired"},` +
		`{"file":"ca.pem","subject":"coracle-ca","issuer":"coracle-ca","expires":"2040-01-01T00:00:00Z"}]`
	script := "#!/bin/sh\necho \"$@\" >> " + dir + "/asked\ncase \"$*\" in *list*) echo '" + list + "';; *) cat " + dir + "/answer;; esac\n"
	for name, content := range map[string]string{"coracle-kube": script, "answer": `{"running":false}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	run := func(args ...string) (string, error) {
		t.Helper()
		var out strings.Builder
		cmd := certificateCommand(&p)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetOut(&out)
		cmd.SetArgs(args)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	out, err := run("check")
	const want = "admin.kubeconfig: it expired; "
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(out, "coracle-ca") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _ := run("check", "-o", "json"); !strings.Contains(out, `"warning": "it expired"`) {
		t.Errorf("as JSON:\n%s", out)
	}
	if out, _ := run("list", "-o", "yaml"); !strings.Contains(out, "warning: it expired") {
		t.Errorf("as YAML:\n%s", out)
	}
	if out, err := run("rotate"); err != nil || !strings.Contains(out, "all certificates are replaced at the next start") {
		t.Errorf("%s, %v", out, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "answer"), []byte(`{"running":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := run("rotate", "--service-account-key"); err != nil || out != "the key of service account tokens is replaced\n" {
		t.Errorf("%s, %v", out, err)
	}
	// Regression: the key was replaced on one of several control-plane nodes.
	if err := os.MkdirAll(p.root, 0o700); err != nil {
		t.Fatal(err)
	}
	remember(t, p, upOptions{Etcd: []string{"https://192.0.2.1:2379"}})
	if out, err := run("rotate", "--service-account-key"); err == nil || !strings.Contains(err.Error(), "other control-plane nodes") {
		t.Errorf("with an etcd elsewhere: %s, %v", out, err)
	}
	if out, err := run("rotate", "--authority"); err == nil || !strings.Contains(err.Error(), "other control-plane nodes") {
		t.Errorf("another authority with an etcd elsewhere: %s, %v", out, err)
	}
	remember(t, p, upOptions{})
	if out, err := run("rotate", "--authority", "--timeout", "7s"); err != nil || !strings.Contains(out, "--finish' stops trust") {
		t.Errorf("%s, %v", out, err)
	}
	if out, err := run("rotate", "--authority", "--finish"); err != nil || out != "the former authority is not trusted any more\n" {
		t.Errorf("%s, %v", out, err)
	}
	if _, err := run("rotate", "--finish"); err == nil || !strings.Contains(err.Error(), "--finish is for --authority") {
		t.Error(err)
	}
	const lagging = `{"running":true,"lagging":["two: it has not taken the new authority"]}`
	if err := os.WriteFile(filepath.Join(dir, "answer"), []byte(lagging), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := run("rotate", "--authority", "--finish"); err == nil || !strings.Contains(err.Error(), "two: it has not taken") {
		t.Errorf("with a node that does not follow: %v", err)
	}
	asked, err := os.ReadFile(filepath.Join(dir, "asked"))
	if err != nil || !strings.Contains(string(asked), "rotate --certificates") ||
		!strings.Contains(string(asked), "rotate --service-account-key") || !strings.Contains(string(asked), "rotate --authority --timeout 7s") {
		t.Errorf("%s, %v", asked, err)
	}
}

func TestStatusShowsWarnings(t *testing.T) {
	h := health{Message: "6 certificates", Warnings: []string{"admin.kubeconfig: it expires"}}
	if got := h.told(); got != "6 certificates; warning: admin.kubeconfig: it expires" {
		t.Error(got)
	}
}
