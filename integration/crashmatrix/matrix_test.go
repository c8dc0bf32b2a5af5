package crashmatrix

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/integration/exitcodes"
	"github.com/coracle-project/coracle/internal/testkit"
)

// elsewhere are the fault points that no operation here passes, by prefix, each with the test that
// passes them and fails if it does not. Those tests also ask the programs for their points.
var elsewhere = map[string]string{
	"image.lazy.":   "integration TestLazyKilledAtEachFaultPoint", // layers that are pulled lazily
	"runtime.oci.":  "integration TestShimKilledAtEachFaultPoint", // containers of other OCI runtimes
	"runtime.shim.": "integration TestShimKilledAtEachFaultPoint", // and of other shims
	"runtime.kill.": "shim/client TestKillAtEachStep",             // where the kernel cannot kill a cgroup

	"pod.start.again":     "pod TestCrashBeforeStartOnceMore",        // a shim that dies during a start
	"pod.unmanaged.":      "pod TestCrashWhileRemovingUnmanaged",     // damaged records
	"shim.exec.killed":    "shim/client TestExecsEndWithTheirDaemon", // execs without a daemon
	"shim.exec.signalled": "shim/client TestExecsEndWithTheirDaemon",
}

// prefixes are the packages that have side effects, and therefore fault points.
var prefixes = []string{
	"image.", "network.cni.", "network.setup.", "network.teardown.", "nspin.", "pod.", "runtime.", "runtime.oci.", "runtime.shim.", "shim.",
	"snapshot.",
}

// row is an operation and a point that it passes.
type row struct {
	op    operation
	point string
	at    program
}

// result is what a fault did.
type result struct {
	row  row
	kind kind
	lost error
}

func (r result) limit() string { return knownLimit(r.kind.name, r.row.point, r.lost) }

// TestFaultPoints makes faults happen at every fault point of every program.
func TestFaultPoints(t *testing.T) {
	// Before anything starts: shims have to see it, and its mount is not the daemon's.
	if why := testkit.NoCRIU(); *page != "" && why != "" {
		t.Fatalf("the page needs criu: %s", why)
	}
	if !exitcodes.Kept(t) {
		onOldKernel()
	}
	points := allPoints(t)
	passed := map[string]bool{}
	var all []result
	for _, kind := range []nodeKind{builtIn, onCNI} {
		t.Run(string(kind), func(t *testing.T) {
			n := newNode(t, kind)
			rows := passedOn(t, n, kind, points)
			cells := plan(rows, passed, *page != "")
			t.Logf("%d rows, %d cells", len(rows), len(cells))
			for _, c := range cells {
				c.n = n
				t.Run(fmt.Sprintf("%s/%s/%s", c.op.name, c.point, c.kind.name), func(t *testing.T) {
					begin := time.Now()
					r := result{row{c.op, c.point, c.at}, c.kind, c.run()}
					t.Logf("%.2f s", time.Since(begin).Seconds())
					all = append(all, r)
					if *page != "" { // each time, so that an interrupted run shows its progress
						writePage(t, *page, all)
					}
					if r.lost != nil && r.limit() == "" {
						t.Error(r.lost)
					}
				})
			}
			for _, r := range rows {
				passed[r.point] = true
			}
		})
	}
	for point := range points {
		if !passed[point] && !isElsewhere(point) && !isSkipped(point) {
			t.Errorf("no operation passes the fault point %s", point)
		}
	}
}

// allPoints are the points of the daemon and of the shim.
func allPoints(t *testing.T) map[string]program {
	t.Helper()
	points := map[string]program{}
	for _, p := range []program{daemon, shim} {
		for _, point := range testkit.FaultPointsOf(t, string(p), "") {
			points[point] = p
		}
	}
	for _, prefix := range prefixes {
		if !hasPrefix(points, prefix) {
			t.Errorf("no fault point %s…", prefix)
		}
	}
	for prefix := range elsewhere {
		if !hasPrefix(points, prefix) {
			t.Errorf("no fault point %s…, of which another test is said to take care", prefix)
		}
	}
	return points
}

func hasPrefix(points map[string]program, prefix string) bool {
	for point := range points {
		if strings.HasPrefix(point, prefix) {
			return true
		}
	}
	return false
}

func isElsewhere(point string) bool {
	for prefix := range elsewhere {
		if strings.HasPrefix(point, prefix) {
			return true
		}
	}
	return false
}

// isSkipped reports whether a point belongs to an operation that cannot run here.
func isSkipped(point string) bool {
	return strings.HasPrefix(point, "pod.checkpoint.") && testkit.NoCRIU() != ""
}

// passedOn runs all operations of a kind of node once, and returns the points that they pass.
func passedOn(t *testing.T, n *node, kind nodeKind, points map[string]program) []row {
	t.Helper()
	var rows []row
	for _, op := range operationsOn(kind) {
		if op.skip != nil && op.skip() != "" {
			testkit.Untested(t, "%s: %s (make crash-matrix builds what it needs)", op.name, op.skip())
			continue
		}
		passes, err := (&cell{n: n, op: op}).passes()
		if err != nil {
			t.Fatalf("%s, without a fault: %v", op.name, err)
		}
		for _, point := range passes {
			at, ok := points[point]
			if !ok {
				t.Fatalf("%s passes %s, which no program has", op.name, point)
			}
			rows = append(rows, row{op, point, at})
		}
	}
	if err := n.takeBaseline(); err != nil {
		t.Fatal(err)
	}
	return rows
}

func operationsOn(kind nodeKind) []operation {
	return slices.DeleteFunc(slices.Clone(operations), func(op operation) bool {
		return op.node != kind && (op.node != "" || kind != builtIn)
	})
}

// each is how many of kinds every point gets in every run.
const each = 3

// plan returns the cells to run. For the page, these are all cells. Otherwise they are the first
// kinds of fault at all points that no earlier operation passes, and for each operation one of the
// other kinds at one point, chosen by their names.
func plan(rows []row, passed map[string]bool, whole bool) []cell {
	var cells []cell
	add := func(r row, k kind) {
		if k.of(r.at) {
			cells = append(cells, cell{op: r.op, point: r.point, at: r.at, kind: k})
		}
	}
	if whole {
		for _, r := range rows {
			for _, k := range kinds {
				add(r, k)
			}
		}
		return cells
	}
	seen := map[string]bool{}
	ofOperation := map[string][]row{}
	var order []string
	for _, r := range rows {
		if r.op.own || !seen[r.point] && !passed[r.point] {
			for _, k := range kinds[:each] {
				add(r, k)
			}
		}
		seen[r.point] = true
		if ofOperation[r.op.name] == nil {
			order = append(order, r.op.name)
		}
		ofOperation[r.op.name] = append(ofOperation[r.op.name], r)
	}
	for _, name := range order {
		r := pick(ofOperation[name], name)
		add(r, pick(slices.DeleteFunc(slices.Clone(kinds[each:]), func(k kind) bool { return !k.of(r.at) }), name+r.point))
	}
	return cells
}

// pick chooses one element by a name.
func pick[T any](from []T, name string) T {
	h := fnv.New32a()
	h.Write([]byte(name))
	return from[h.Sum32()%uint32(len(from))]
}
