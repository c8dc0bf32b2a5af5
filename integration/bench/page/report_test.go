package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The files in testdata are the parts as three programs, each with a writer of its own, wrote them
// from these figures.
func TestParts(t *testing.T) {
	here := Machine{CPUs: 2, Model: "Model X", Kernel: "6.1", LoadBefore: "0.10", LoadAfter: "0.20"}
	busy := here
	busy.Busy = true
	runtimes := []Table{Compared([]string{"coracle", "coracle+CNI", "cri-o+crun"})}
	versions := map[string]string{"coracle": "coracle 1", "coracle+CNI": "coracle 1", "cri-o+crun": "cri-o 2"}
	given := func(seccomp bool) map[string]any {
		return map[string]any{
			"runs": 3, "n": 20, "gone": 5, "pods": 50, "crowd": 100, "clients": 10, "lists": 20, "window": "500ms",
			"busy": 0.08, "seccomp": seccomp, "pullers": 8, "creates": 20,
		}
	}
	for file, r := range map[string]*Report{
		"runtimes": {Part: Runtimes, Machine: here, Versions: versions, Tables: runtimes, Given: given(false), Figures: runtimeFigures()},
		"runtimes-seccomp": {
			Part: Runtimes, Machine: busy, Versions: versions, Tables: runtimes, Given: given(true),
			Figures: runtimeFigures(),
		},
		"images": {Part: Images, Machine: here, Versions: versions, Tables: runtimes, Given: given(false), Figures: runtimeFigures()},
		"clusters": {
			Part: Clusters, Machine: here, Tables: []Table{ClusterTable},
			Versions: map[string]string{"coracle": "c 1, load 1 before and 2 after", "upstream": "u 2"}, Figures: []Figure{
				{"coracle", "API ready", "s", 1.25, false},
				{"coracle", "rate", "pods/s", 4567.8, true},
				{"coracle", "ours", "ms", 0.0123, false},
				{"upstream", "API ready", "s", 5.678, false},
				{"upstream", "rate", "pods/s", 1234, true},
				{"upstream", "theirs", "1", 0, false},
				{"upstream", "alone", "pods/s", 33.33, true},
				{"coracle", "alone", "pods/s", 66.66, true},
			},
		},
		"container": {
			Part: Container, Machine: here, Tables: ContainerTables, Figures: containerFigures(),
			Versions: map[string]string{"programs": "coracle-oci 1; crun 2; runc 3"},
			Given:    map[string]any{"mounts": Mounts, "mounted": WithMounts, "turns": Turns, "inRow": InRow(150)},
		},
	} {
		t.Run(file, func(t *testing.T) {
			want, err := os.ReadFile(filepath.Join("testdata", file+".md"))
			if err != nil {
				t.Fatal(err)
			}
			r.Date = "2026-01-02"
			got, err := r.text()
			if err != nil {
				t.Fatal(err)
			}
			have, lines := strings.Split(strings.TrimSpace(got), "\n"), strings.Split(strings.TrimSpace(string(want)), "\n")
			for i := range max(len(have), len(lines)) {
				if i >= len(have) || i >= len(lines) || have[i] != lines[i] {
					t.Fatalf("line %d differs, of %d and %d:\n%s", i+1, len(have), len(lines), got)
				}
			}
		})
	}
}

func runtimeFigures() (all []Figure) {
	for i, of := range []string{"coracle", "coracle+CNI", "cri-o+crun"} {
		for run := range 3 {
			all = append(all, Figure{Of: of, Name: "RunPodSandbox, ms", Value: 1.5*float64(i*i*20+1) + float64((run*2)%3)/3},
				Figure{Of: of, Name: "size, MB", Value: float64(i+1) / 7}, Figure{Of: of, Name: "rest", Value: float64(i) / 50 * float64(run)})
		}
	}
	return append(all, Figure{Of: "coracle", Name: "among 1000, ms", Value: 123.4},
		Figure{Of: "coracle+CNI", Name: "among 1000, ms", Value: 12.34})
}

func containerFigures() (all []Figure) {
	found := func(of, name, unit string, value float64) {
		all = append(all, Figure{Of: of, Name: name, Unit: unit, Value: value})
	}
	times := func(of, name string, n int, first, by float64) { // in ns
		for i := range n {
			found(of, name, "ms", (first+float64(i)*by)/1e6)
		}
	}
	for i, name := range []string{
		"fork, exec and wait", "floor: in C", "coracle-oci, no seccomp", "crun, no seccomp", "runc, no seccomp",
		"coracle-oci, default seccomp", "crun, default seccomp",
	} {
		k := float64(i + 1)
		times(InTurns, name, 150, k*1234567, 12345)
		times(CPU(InTurns), name, 1, k*1111111, 0)
		times(InLoop, name, 150, k*1034567, 2345)
		times(CPU(InLoop), name, 1, k*1011111, 0)
		times(WithMounts, name, 50, k*2034567, 22345)
	}
	for i, name := range []string{"coracle", "libcontainer"} {
		for j, of := range []string{name, OnCrowdedHost(name)} {
			k, more := float64(i+1), float64(j)*100_000
			times(of, "create, start, exit seen", 150, k*(3456789+more), 1234)
			times(of, "… and deleted", 150, k*(4456789+more), 1234)
			times(of, "exec of true, exit seen", 150, k*(1456789+more), 1234)
			found(of, "containers/s, 4 callers", "", 150/(k*(0.4+float64(j)/100)))
		}
	}
	found(Starter, "PSS", "kB", 12)
	found(Steps, "plan", "", 123)
	found(Steps, "  clone", "", 45)
	found(Sizes, "coracle-oci", "MB", 7.2)
	found(Sizes, "crun", "MB", 0.600001)
	found(Sizes, "runc", "MB", 10.34)
	return all
}
