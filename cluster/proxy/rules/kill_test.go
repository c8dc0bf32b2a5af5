package rules

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// holder is the environment variable that makes the test program a proxy until it is killed. It
// goes on changing the endpoints of the second Service, so that it is killed in a transaction
// sometimes.
const holder = "CORACLE_TEST_HOLD_RULES"

func TestMain(m *testing.M) {
	if os.Getenv(holder) == "" {
		os.Exit(m.Run())
	}
	if err := hold(os.Getenv(holder)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func hold(endpoints string) error {
	table, err := Open(config())
	if err != nil {
		return err
	}
	ports, all := twoServices(endpoints)
	if err := table.Apply(context.Background(), Change{Ports: ports}); err != nil {
		return err
	}
	fmt.Println("in force")
	for i := 0; ; i++ {
		two := *ports["two"]
		two.Backends = []Backend{{Endpoints: all[i%2:]}}
		if err := table.Apply(context.Background(), Change{Ports: map[Key]*Port{"two": &two}}); err != nil {
			return err
		}
	}
}

func TestKilledProcess(t *testing.T) {
	n := newNode(t)
	endpoints := n.b.IPv4.String() + " " + n.a.IPv4.String()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var conn io.ReadWriteCloser
	for range 3 {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), holder+"="+endpoints)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Start(cmd); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(stdout)
		for line := ""; line != "in force\n"; {
			if line, err = lines.ReadString('\n'); err != nil {
				t.Fatalf("%q, %v", line, err)
			}
		}
		if conn == nil {
			dialed, err := n.a.Dial("tcp", at(service4, 80))
			if err != nil {
				t.Fatal(err)
			}
			defer dialed.Close()
			if _, err := io.ReadFull(dialed, make([]byte, len("b 10.244.0.2\n"))); err != nil {
				t.Fatal(err)
			}
			conn = dialed
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if got := cmd.ProcessState.String(); got != "signal: killed" {
			t.Fatal(got)
		}
		n.expect(n.a, "tcp", at(service4, 80), "b "+n.a.IPv4.String())
		if got, err := n.Ask("tcp", at(service4, 81)); err != nil || strings.Fields(got)[0] > "b" {
			t.Errorf("the Service that was being changed: %q, %v", got, err)
		}
		if err := echo(conn); err != nil {
			t.Errorf("an established connection: %v", err)
		}
	}
	table := n.open()
	n.apply(table, map[Key]*Port{})
	n.refused(n.a, "tcp", at(service4, 80)) // what the killed process left is corrected
	if err := echo(conn); err != nil {
		t.Errorf("an established connection of a Service that is gone: %v", err)
	}
	if out := n.Run("nft list map inet " + tableName + " ep4"); strings.Contains(out, "elements") {
		t.Errorf("left are:\n%s", out)
	}
}
