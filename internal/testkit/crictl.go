package testkit

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// Crictl runs the real crictl against the daemon and returns what it printed,
// without the last newline.
func (d *Daemon) Crictl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := d.TryCrictl(nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryCrictl is Crictl with an error; stdin may be nil.
func (d *Daemon) TryCrictl(stdin []byte, args ...string) (string, error) {
	exe, err := FindBin("tools", "crictl")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, append([]string{"-c", "/dev/null", "-r", "unix://" + d.Socket, "-t", "30s"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if stdin != nil {
		cmd.Stdin = bytes.NewReader(stdin)
	}
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("crictl %s: %w\n%s%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}
