package client_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime/runtimetest"
	"github.com/coracle-project/coracle/shim/client"
)

// flood is a container that writes empty lines as fast as it can with 5 % of a CPU.
func (r *rig) flood() client.LaunchRequest {
	r.Helper()
	req := r.request("")
	spec := runtimetest.Spec(req.ID, "/bin/sh", "-c", `exec tr '\000' '\n' </dev/zero`)
	quota, period := int64(5_000), uint64(100_000)
	spec.Linux.CgroupsPath = cgroupParent + "/" + req.ID
	spec.Linux.Resources = &specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: &quota, Period: &period}}
	r.writeSpec(req.Bundle, spec)
	return req
}

// shimTime is the CPU time used by the shim.
func (r *rig) shimTime() time.Duration {
	r.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.shimPID()))
	if err != nil {
		r.Fatal(err)
	}
	_, after, _ := strings.Cut(string(raw), ") ")
	f := strings.Fields(after)
	var user, system int64 // fields 14 and 15 of proc(5), in ticks of 10 ms
	if _, err := fmt.Sscan(f[11]+" "+f[12], &user, &system); err != nil {
		r.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// Containers with almost no CPU write the output that costs the shim most. The shim spends only its
// pumps' share on them, each of them makes progress, and another container's command completes
// meanwhile.
func TestFloodsShare(t *testing.T) {
	r := newRig(t)
	var floods []client.LaunchRequest
	for range 4 {
		floods = append(floods, r.flood())
	}
	quiet := r.request("sleep 1000")
	r.run(quiet)
	for _, req := range floods {
		r.run(req)
	}
	size := func(req client.LaunchRequest) int64 {
		st, err := os.Stat(req.LogPath)
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	// Long enough for ticks of 10 ms on any machine.
	began, used := time.Now(), r.shimTime()
	r.waitFor("logs of all", func() bool {
		for _, req := range floods {
			if size(req) < 10<<20 {
				return false
			}
		}
		return time.Since(began) > time.Second
	})
	share := (r.shimTime() - used).Seconds() / time.Since(began).Seconds()
	if most := float64(min(runtime.NumCPU(), 4)) / 8; share > 1.5*most {
		t.Errorf("the shim used %.2f of a CPU, its pumps may use %.2f", share, most)
	}
	if out, _, code := r.exec(quiet.ID, "echo hello"); out != "hello\n" || code != 0 {
		t.Errorf("exec: %q, %d", out, code)
	}
	t.Logf("the shim used %.2f of a CPU", share)
}

// A shim is killed repeatedly while a flood is held back: each line is in the log exactly once.
func TestKillShimInFlood(t *testing.T) {
	const lines = 1_200_000 // twice as many as may be written in a second
	r := newRig(t)
	req := r.request(fmt.Sprintf(`head -c %d /dev/zero | tr '\000' '\n'`, lines))
	r.run(req)
	pid := 0
	for i := range 5 {
		r.waitFor("output", func() bool {
			st, err := os.Stat(req.LogPath)
			return err == nil && st.Size() > int64(i)*8<<20
		})
		r.waitNewShim(pid)
		pid = r.killShim()
	}
	r.waitNewShim(pid)
	if ev := r.exit(req.ID); ev.ExitCode != 0 {
		t.Errorf("event %+v", ev)
	}
	log, err := os.ReadFile(req.LogPath)
	if err != nil {
		t.Fatal(err)
	}
	if n, whole := bytes.Count(log, []byte("\n")), bytes.Count(log, []byte(" stdout F \n")); n != lines || whole != lines {
		t.Errorf("%d records, %d of them whole, want %d", n, whole, lines)
	}
}

// A log without a limit is rotated at 1 GiB without losing a line.
func TestLogOfOneGigabyte(t *testing.T) {
	const lines, room = 8000, 200_000 // more room than one write takes
	r := newRig(t)
	req := r.request(count(lines))
	if _, err := r.c.Create(r.ctx(), req); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(req.LogPath, 1<<30-room); err != nil { // sparse
		t.Fatal(err)
	}
	if err := r.c.StartContainer(r.ctx(), pod, req.ID); err != nil {
		t.Fatal(err)
	}
	if ev := r.exit(req.ID); ev.ExitCode != 0 {
		t.Errorf("event %+v", ev)
	}
	files := r.logFiles(req.LogPath)
	if len(files) != 2 {
		t.Fatalf("files %q", files)
	}
	f, err := os.Open(files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tail := make([]byte, room+1)
	n, _ := f.ReadAt(tail, 1<<30-room) // up to the end of the file
	if n > room {                      // no rotation, if all came in one piece
		t.Fatalf("%d bytes were written to the first file", n)
	}
	if err := os.WriteFile(files[0]+".tail", tail[:n], 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := r.log(files[0]+".tail", "stdout")+r.log(files[1], "stdout"), numbered(lines, "\n"); got != want {
		t.Errorf("log: %s", firstDifference(got, want))
	}
}
