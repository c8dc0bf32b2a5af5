//go:build database

package kube

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/integration/images"
	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

var (
	databaseFor  = flag.Duration("database", 2*time.Minute, "how long TestDatabase kills")
	databaseSeed = flag.Uint64("seed", 0, "what TestDatabase does (0: another each time)")
)

const (
	databaseWriters = 4
	// leastKills of each kind and leastRows make a run worth something.
	leastKills, leastRows = 3, 1000
	// unanswered is when a client gives a connection up.
	unanswered = 10 * time.Second
	// pace is between two connections of a client, and between two looks at something; think is
	// between two rows of a client, so that ten minutes of them fit on a small disk.
	pace, think = 100 * time.Millisecond, 2 * time.Millisecond
)

// database is a StatefulSet of PostgreSQL, and what its clients know about it.
type database struct {
	*cluster
	psql string
	env  []string // of psql: where the server is

	mu    sync.Mutex
	acked map[row]bool // rows whose COMMIT was acknowledged
	open  map[row]bool // rows of which nothing is known: the connection ended before the answer
	last  time.Time    // when the last acknowledged row began
	gap   time.Duration

	condemned string // UID of the pod that was deleted last, until another has taken its place
}

// row is what a client writes: its number, and how many it has written before.
type row struct{ client, n int }

// PostgreSQL, from the distribution's packages, in a StatefulSet with a claim of the default class:
// clients write rows, while the server, one of its processes, its pod, the shim, coracled and the
// cluster process are killed at random. At the end every row whose COMMIT was acknowledged is
// there. No two servers ever have the claim at once, though a pod that is deleted by force runs on
// for its grace.
func TestDatabase(t *testing.T) {
	seed := *databaseSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat with -seed %d", seed)
	d := newDatabase(t)
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	t.Cleanup(func() { stop(); clients.Wait() })
	for i := range databaseWriters {
		clients.Go(func() { d.write(ctx, i) })
	}
	clients.Go(func() { d.watchServers(ctx, t) })
	killed := d.killAtRandom(t, rand.New(rand.NewPCG(seed, 0)))
	stop()
	clients.Wait()

	d.awaitServer(t)
	lost, found := d.lost(t)
	if len(lost) > 0 {
		t.Errorf("of %d rows whose COMMIT was acknowledged, %d are lost: %v", len(d.acked), len(lost), lost[:min(len(lost), 20)])
	}
	arrived := 0
	for r := range found {
		if d.open[r] {
			arrived++
		} else if !d.acked[r] {
			t.Errorf("row %v is there, and was never written", r)
		}
	}
	t.Logf("killed %v; %d rows acknowledged, all others: %d, of which %d are there; the longest time without a commit was %v",
		killed, len(d.acked), len(d.open), arrived, d.gap.Round(time.Millisecond))
	if len(d.acked) < leastRows {
		t.Errorf("only %d rows were written", len(d.acked))
	}
	// That a lost row is found is shown by losing one.
	var victim row
	for victim = range d.acked {
		break
	}
	d.queryAgain(t, fmt.Sprintf("DELETE FROM rows WHERE client = %d AND n = %d", victim.client, victim.n))
	if lost, _ := d.lost(t); !slices.Equal(lost, []row{victim}) {
		t.Errorf("row %v was deleted, and these are found lost: %v", victim, lost)
	}
}

// newDatabase starts a cluster with a database that answers and has an empty table.
func newDatabase(t *testing.T) *database {
	t.Helper()
	bin, err := images.FindDatabase()
	if err != nil {
		t.Fatal(err)
	}
	programs, err := testkit.FindBin()
	if err != nil {
		t.Fatal(err)
	}
	src, err := images.NewSource(programs)
	if err != nil {
		t.Fatal(err)
	}
	image, err := src.Database()
	if err != nil {
		t.Fatal(err)
	}
	if err := images.Push(t.Context(), registry.Addr, []images.Named{image}, ociimage.Registry{PlainHTTP: true}); err != nil {
		t.Fatal(err)
	}
	giveDefaultRoute(t)
	d := &database{cluster: newCluster(t), psql: filepath.Join(bin, "psql"), acked: map[row]bool{}, open: map[row]bool{}}
	t.Cleanup(func() { // the cluster's own end does not delete volumes
		if t.Failed() {
			d.showLogs(t)
		}
		d.run(t, "down", "--purge", "--delete-volumes")
	})
	d.apply(t, fmt.Sprintf(databaseManifest, registry.Addr+"/"+image.Name, images.DatabaseUser))
	d.env = append(os.Environ(), "PGUSER=postgres", "PGDATABASE=postgres", "PGCONNECT_TIMEOUT=5",
		"PGHOST="+d.kube(t, "get", "service", "db", "-o", "jsonpath={.spec.clusterIP}"))
	d.await(t, "rollout", "status", "statefulset/db")
	d.awaitServer(t)
	d.query(t, "CREATE TABLE rows (client int, n int, PRIMARY KEY (client, n))")
	return d
}

// giveDefaultRoute gives this machine a default route, as nodes have: without one it has no way to
// a Service's address.
func giveDefaultRoute(t *testing.T) {
	t.Helper()
	giveAddress(t, "192.0.2.10/24")
	if err := netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(192, 0, 2, 1)}); err != nil {
		t.Fatal(err)
	}
}

// fsGroup is set on the volume's files once: the server refuses a database that its group may write
// to.
const databaseManifest = `
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {selector: {app: db}, ports: [{port: 5432}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      securityContext: {runAsUser: %[2]d, runAsGroup: %[2]d, fsGroup: %[2]d, fsGroupChangePolicy: OnRootMismatch, runAsNonRoot: true}
      containers:
      - name: postgres
        image: %[1]s
        ports: [{containerPort: 5432}]
        readinessProbe: {tcpSocket: {port: 5432}, periodSeconds: 1}
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 512Mi}}}
`

// awaitServer returns when the server answers.
func (d *database) awaitServer(t *testing.T) {
	t.Helper()
	d.queryAgain(t, "SELECT 1")
}

// queryAgain asks until the server answers, which may be restarting. So sql has to be idempotent.
func (d *database) queryAgain(t *testing.T, sql string) string {
	t.Helper()
	for end := time.Now().Add(patience); ; d.wait(t, pace) {
		out, err := d.try(sql)
		if err == nil {
			return out
		}
		if time.Now().After(end) {
			state, _ := d.tryKube("", "get", "pods,pvc,events")
			t.Fatalf("the database does not answer %q: %v, %s\n%s", sql, err, out, state)
		}
	}
}

func (d *database) try(sql string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.psql, "-X", "-q", "-A", "-t", "-F", " ", "-v", "ON_ERROR_STOP=1", "-c", sql)
	cmd.Env = d.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (d *database) query(t *testing.T, sql string) string {
	t.Helper()
	out, err := d.try(sql)
	if err != nil {
		t.Fatalf("%s: %v\n%s", sql, err, out)
	}
	return out
}

// wait lets time pass: the test is about what happens in a time.
func (d *database) wait(t *testing.T, pause time.Duration) {
	select {
	case <-time.After(pause):
	case <-t.Context().Done():
	}
}

// write is one client: it writes rows until the context ends, by one connection after the other.
func (d *database) write(ctx context.Context, client int) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; {
		n = d.session(ctx, client, n)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// session writes rows from n on until something fails, and returns the number of the next one. A
// row whose answer did not arrive is not written again: it may be there.
func (d *database) session(ctx context.Context, client, n int) int {
	// Without its own limits the kernel would ask an address that is gone for a quarter of an hour.
	cmd := exec.CommandContext(ctx, d.psql, "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1",
		"tcp_user_timeout=3000 keepalives_idle=2 keepalives_interval=1 keepalives_count=3")
	cmd.Env = d.env
	in, err := cmd.StdinPipe()
	if err != nil {
		return n
	}
	out, err := cmd.StdoutPipe()
	if err != nil || cmd.Start() != nil {
		return n
	}
	silent := time.AfterFunc(unanswered, func() { _ = cmd.Process.Kill() })
	defer func() {
		_ = in.Close()
		silent.Stop()
		_ = cmd.Wait() // how it ended says nothing more
	}()
	rhythm := time.NewTicker(think)
	defer rhythm.Stop()
	for answers := bufio.NewReader(out); ; n++ {
		<-rhythm.C
		silent.Reset(unanswered)
		began := time.Now()
		// Not in a transaction of its own: the answer to a single statement is the answer to its
		// COMMIT.
		if _, err := fmt.Fprintf(in, "INSERT INTO rows VALUES (%d, %d);\n", client, n); err != nil {
			return n
		}
		answer, err := answers.ReadString('\n')
		d.note(row{client, n}, began, err == nil && answer == "INSERT 0 1\n")
		if err != nil || ctx.Err() != nil {
			return n + 1
		}
	}
}

func (d *database) note(r row, began time.Time, acknowledged bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !acknowledged {
		d.open[r] = true
		return
	}
	d.acked[r] = true
	if !d.last.IsZero() {
		d.gap = max(d.gap, began.Sub(d.last))
	}
	if began.After(d.last) {
		d.last = began
	}
}

// lost are the acknowledged rows that are not there, and found all that are.
func (d *database) lost(t *testing.T) (lost []row, found map[row]bool) {
	t.Helper()
	found = map[row]bool{}
	for line := range strings.Lines(d.queryAgain(t, "SELECT client, n FROM rows")) {
		var r row
		if _, err := fmt.Sscan(line, &r.client, &r.n); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		found[r] = true
	}
	for r := range d.acked {
		if !found[r] {
			lost = append(lost, r)
		}
	}
	return lost, found
}

// killAtRandom kills until the time is over and enough of each kind has been killed. After most
// kills it waits until the database has committed something that was asked after it; others follow
// at once.
func (d *database) killAtRandom(t *testing.T, random *rand.Rand) map[string]int {
	t.Helper()
	kinds := []string{"postgres", "backend", "pod", "shim", "coracled", "coracle-kube"}
	killed := map[string]int{}
	d.awaitCommit(t, "the start")
	for began := time.Now(); time.Since(began) < *databaseFor || killed[kinds[0]] < leastKills; {
		random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for _, kind := range kinds {
			d.wait(t, time.Duration(random.IntN(1500))*time.Millisecond) // what the seed says
			d.kill(t, kind, random)
			killed[kind]++
			if random.IntN(3) > 0 {
				d.awaitCommit(t, kind+" was killed")
			}
		}
		d.awaitCommit(t, "a round")
	}
	return killed
}

// awaitCommit returns when a row has been acknowledged that was written after now, and by no server
// that is about to end.
func (d *database) awaitCommit(t *testing.T, after string) {
	t.Helper()
	d.awaitSuccessor(t)
	for now := time.Now(); ; d.wait(t, pace) {
		d.mu.Lock()
		last := d.last
		d.mu.Unlock()
		if last.After(now) {
			return
		}
		if time.Since(now) > patience {
			out, _ := d.tryKube("", "get", "pods,pvc,events")
			logs, _ := d.tryKube("", "logs", "db-0")
			t.Fatalf("after %s, nothing was committed for %v\n%s\n%s", after, patience, out, logs)
		}
	}
}

// awaitSuccessor returns when another pod is ready in place of the one that was deleted, which goes
// on to commit for its grace.
func (d *database) awaitSuccessor(t *testing.T) {
	t.Helper()
	if d.condemned == "" {
		return
	}
	for end := time.Now().Add(patience); ; d.wait(t, pace) {
		uid, ready, err := d.pod()
		if err == nil && uid != d.condemned && ready == "True" {
			d.condemned = ""
			return
		}
		if time.Now().After(end) {
			state, _ := d.tryKube("", "get", "pods,pvc,events")
			t.Fatalf("no pod took the place of the one with the uid %s: %v\n%s", d.condemned, err, state)
		}
	}
}

// pod returns the UID of the pod of now, and the status of its condition Ready.
func (d *database) pod() (uid, ready string, err error) {
	out, err := d.tryKube("", "get", "pod", "db-0", "-o", `jsonpath={.metadata.uid}/{.status.conditions[?(@.type=="Ready")].status}`)
	words := strings.Fields(out) // kubectl may complain of something else first
	if err != nil || len(words) == 0 {
		return "", "", fmt.Errorf("no pod: %w: %s", err, out)
	}
	uid, ready, _ = strings.Cut(words[len(words)-1], "/")
	return uid, ready, nil
}

// kill kills one thing, which is there or comes back after an earlier kill.
func (d *database) kill(t *testing.T, kind string, random *rand.Rand) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); d.wait(t, pace) {
		if kind == "pod" {
			var uid, out string
			if uid, _, err = d.pod(); err != nil {
				continue
			}
			d.condemned = uid // also if the answer to the deletion is lost
			if out, err = d.tryKube("", "delete", "pod", "db-0", "--force", "--wait=false"); err == nil {
				return
			}
			err = fmt.Errorf("%w: %s", err, out)
			continue
		}
		victims := d.victims(kind)
		if len(victims) == 0 {
			err = fmt.Errorf("no process")
			continue
		}
		if err = unix.Kill(victims[random.IntN(len(victims))], unix.SIGKILL); err == nil {
			return
		}
	}
	t.Fatalf("kill %s: %v", kind, err)
}

// victims are the processes of a kind.
func (d *database) victims(kind string) (pids []int) {
	programs := map[string]string{
		"postgres": "/bin/postgres", "backend": "/bin/postgres", "shim": "/bin/containerd-shim-coracle-v1",
		"coracled": "/bin/coracled", "coracle-kube": "/bin/coracle-kube",
	}
	for _, p := range testkit.Processes() {
		if !strings.HasSuffix(p.Exe, programs[kind]) {
			continue
		}
		switch kind {
		case "postgres": // its children's titles say what they do
			if len(p.Args) < 2 || p.Args[1] != "-D" {
				continue
			}
		case "backend":
			if !strings.HasPrefix(p.Args[0], "postgres: ") {
				continue
			}
		case "shim": // the keeper and pods' inits run the same program
			if len(p.Args) < 2 || p.Args[1] != "serve" {
				continue
			}
		}
		pids = append(pids, p.PID)
	}
	return pids
}

// watchServers looks all the time whether servers of two containers run at once.
func (d *database) watchServers(ctx context.Context, t *testing.T) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	looks := 0
	for {
		spaces := map[string]int{}
		for _, pid := range d.victims("postgres") {
			if space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err == nil {
				spaces[space] = pid
			}
		}
		if len(spaces) > 1 {
			t.Errorf("%v: servers of two containers have the database: %v", time.Now().Format(time.TimeOnly), spaces)
		}
		looks += len(spaces)
		select {
		case <-ctx.Done():
			if looks == 0 {
				t.Error("no server was ever seen")
			}
			return
		case <-tick.C:
		}
	}
}
