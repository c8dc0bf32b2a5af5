//go:build nodes && vm

package nodes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/cluster/integration/coraclecmd"
)

// A guest is a virtual machine that becomes a node: it has a clock of its own, which namespaces do
// not have. This program runs in the guest, too. It connects to the test, which is on the guest's
// way to other networks, and runs what the test says.

const (
	// guestVar has the address that the program in the guest connects to.
	guestVar     = "CORACLE_TEST_GUEST"
	guestAddress = firstIP + ":7000"
	// guestLimit bounds the guest's life, in seconds: emulated, programs are ten times slower.
	guestLimit = 3600

	// Where the guest has Coracle's programs and what runs in pods.
	guestBin    = "/var/tmp/bin"
	guestOnce   = "/var/tmp/once"
	guestConfig = "/var/tmp/coracled.toml"
)

func init() { programs[guestVar] = inGuest }

// said is the guest's answer to a command line.
type said struct{ Out, Said, Err string }

// inGuest runs what the test says, one after the other, until the test has ended.
func inGuest(address string) int {
	conn, err := net.Dial("tcp", address)
	for err == nil {
		var argv []string
		if err = json.NewDecoder(conn).Decode(&argv); err != nil {
			break
		}
		var answer said
		var failed error
		if answer.Out, answer.Said, failed = coraclecmd.Exec(argv); failed != nil {
			answer.Err = failed.Error()
		}
		err = json.NewEncoder(conn).Encode(answer)
	}
	if errors.Is(err, io.EOF) {
		return 0
	}
	fmt.Fprintln(os.Stderr, "guest:", err)
	return 1
}

type guest struct {
	*machine
	conn net.Conn
}

// startGuest starts a guest, with Coracle's programs.
func startGuest(t *testing.T) *guest {
	t.Helper()
	run := os.Getenv("VM_RUN")
	if run == "" {
		t.Fatal("VM_RUN is not set; name a command that runs another in a virtual machine, see hack/oci/vm.sh")
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", guestAddress)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	// Not until the test's context ends: that is before the guest is told to end.
	cmd := exec.Command(run, "--net", "--share", filepath.Dir(program)+":/t", "--share", bin()+":/b",
		"-t", strconv.Itoa(guestLimit), "--", "env", guestVar+"="+guestAddress, "/t/"+filepath.Base(program))
	var console bytes.Buffer
	cmd.Stdout, cmd.Stderr = &console, &console
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait(); _ = listener.Close() }()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatalf("the guest does not start: %v, %v\n%s", err, <-ended, console.String())
	}
	g := &guest{conn: conn}
	g.machine = &machine{Node: coraclecmd.Node{
		Name: "guest", Argv: func() []string { return []string{guestBin + "/coracle"} }, Exec: g.exec,
	}}
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range []string{"kube.log", "coracled.log"} {
				log, _, _ := g.exec([]string{"tail", "-c", "6000", "/var/lib/coracle/logs/" + name})
				t.Logf("--- %s of the guest\n%s", name, log)
			}
		}
		_ = conn.Close()
		if err := <-ended; err != nil {
			t.Errorf("the guest: %v\n%s", err, console.String())
		}
	})
	g.must(t, "sh", "-c", fmt.Sprintf("mkdir -p %s %s && chmod 777 %[2]s && cp /t/%[3]s %[1]s/once && cd /b && "+
		"cp coracle coracled coracle-kube coracle-lazy containerd-shim-coracle-v1 %[1]s", guestBin, guestOnce, filepath.Base(program)))
	g.must(t, "sh", "-c", fmt.Sprintf("printf '[image.registry.\"%s\"]\\nplain_http = true\\n' >%s", registry, guestConfig))
	return g
}

// exec runs a program in the guest.
func (g *guest) exec(argv []string) (out, complaint string, err error) {
	if err := json.NewEncoder(g.conn).Encode(argv); err != nil {
		return "", "", err
	}
	var answer said
	if err := json.NewDecoder(g.conn).Decode(&answer); err != nil {
		return "", "", fmt.Errorf("the guest does not answer: %w", err)
	}
	if answer.Err != "" {
		err = errors.New(answer.Err)
	}
	return answer.Out, answer.Said, err
}

func (g *guest) must(t *testing.T, argv ...string) string {
	t.Helper()
	out, said, err := g.exec(argv)
	if err != nil {
		t.Fatalf("in the guest, %s: %v\n%s%s", strings.Join(argv, " "), err, out, said)
	}
	return out
}

// setClock sets the guest's clock, ahead of this machine's.
func (g *guest) setClock(t *testing.T, ahead time.Duration) {
	t.Helper()
	g.must(t, "date", "--set", fmt.Sprintf("@%d", time.Now().Add(ahead).Unix()))
}
