package integration

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// forgetful is a CNI plugin whose DEL fails so many times. It tells each time in a FIFO what it
// did.
const forgetful = `#!/bin/sh
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'$CNI_NETNS'"}],"ips":[{"interface":0,"address":"192.0.2.7/24"}]}' ;;
DEL)
  echo x >>%[1]s/tries
  if [ $(wc -l <%[1]s/tries) -le %[2]d ]; then
    echo failed >%[1]s/told
    echo '{"cniVersion":"1.0.0","code":11,"msg":"try again later"}'
    exit 1
  fi
  echo done >%[1]s/told ;;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
esac
`

// A pod whose plugin does not let go of it goes, and DEL is tried again until it succeeds, by the
// next coracled if this one dies.
func TestCNIDelIsTriedUntilItSucceeds(t *testing.T) {
	dir := t.TempDir()
	const failures = 4
	if err := os.WriteFile(filepath.Join(dir, "forgetful"), fmt.Appendf(nil, forgetful, dir, failures), 0o755); err != nil {
		t.Fatal(err)
	}
	conf := t.TempDir()
	writeFile(t, filepath.Join(conf, "10.conflist"), `{"cniVersion": "1.0.0", "name": "test", "plugins": [{"type": "forgetful"}]}`)
	if err := unix.Mkfifo(filepath.Join(dir, "told"), 0o600); err != nil {
		t.Fatal(err)
	}
	fifo, err := os.OpenFile(filepath.Join(dir, "told"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer fifo.Close()
	told := bufio.NewScanner(fifo)
	next := func() string {
		t.Helper()
		_ = fifo.SetReadDeadline(time.Now().Add(time.Minute))
		if !told.Scan() {
			t.Fatal(told.Err())
		}
		return told.Text()
	}

	n := newNode(t, testkit.Options{CNIConfDir: conf, CNIBinDir: dir, NoSupervise: true})
	p := n.runPod(nil)
	if ip := p.status().GetNetwork().GetIp(); ip != "192.0.2.7" {
		t.Errorf("address %q", ip)
	}
	p.stop()
	if _, err := n.RemovePodSandbox(n.ctx(), &cri.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
		t.Error(err)
	}
	if got := next(); got != "failed" {
		t.Errorf("first DEL: %s", got)
	}
	if err := testkit.Kill(n.PID()); err != nil {
		t.Fatal(err)
	}
	<-n.Exited()
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	for next() == "failed" {
	}
	eventually(t, "the pod's records are gone", func() bool {
		left, err := filepath.Glob(filepath.Join(n.State, "network", "cni", "*"))
		pods, perr := filepath.Glob(filepath.Join(n.State, "pods", "*"))
		return err == nil && perr == nil && len(left)+len(pods) == 0
	})
}
