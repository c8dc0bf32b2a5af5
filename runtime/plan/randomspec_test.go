package plan_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/runtimetest"
	"github.com/coracle-project/coracle/runtime/validate"
)

// spoil changes some values of a configuration, as JSON, to others that may be wrong.
func spoil(r *rand.Rand, v any, odd *float64) any {
	if *odd *= 1.0001; r.Float64() < *odd {
		return []any{
			nil, true, -1.0, 0.0, 4294967295.0, 1e18, "", "/", "..", "/proc/self", "a b", "ü\n",
			[]any{},
			map[string]any{},
			[]any{"ro", "rbind", "rshared", "tmpcopyup"},
			"bind", "user", "/proc/self/ns/user",
		}[r.IntN(18)]
	}
	switch v := v.(type) {
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys) // for a seed to say all
		for _, k := range keys {
			v[k] = spoil(r, v[k], odd)
		}
	case []any:
		for i := range v {
			v[i] = spoil(r, v[i], odd)
		}
	}
	return v
}

// Whatever passes validation becomes a plan, or an error, and what is a plan can be encoded.
func TestRandomConfigurations(t *testing.T) {
	full := runtimetest.Spec("random", "sh", "-c", "true")
	full.Root.Path = "/"
	uid := uint32(5)
	full.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/x", Type: "c", Major: 1, Minor: 3, UID: &uid}}
	full.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "1"}
	full.Linux.UIDMappings = []specs.LinuxIDMapping{{HostID: 1000, Size: 10}}
	full.Linux.GIDMappings = full.Linux.UIDMappings
	full.Linux.Namespaces = append(full.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace},
		specs.LinuxNamespace{Type: specs.TimeNamespace})
	full.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"monotonic": {Secs: 1}}
	full.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1, Hard: 2}}
	full.Process.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch}
	full.Process.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE}
	full.Hooks = &specs.Hooks{StartContainer: []specs.Hook{{Path: "/bin/true"}}}
	full.Mounts = append(full.Mounts,
		specs.Mount{Destination: "/vol", Source: "/tmp", Type: "bind", Options: []string{"rbind", "ro", "idmap"}})
	data, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(os.Getpid())
	r := rand.New(rand.NewPCG(seed, 0))
	valid, plans := 0, 0
	for range 5000 {
		var tree any
		if err := json.Unmarshal(data, &tree); err != nil {
			t.Fatal(err)
		}
		odd := r.Float64() * 0.02
		text, err := json.Marshal(spoil(r, tree, &odd))
		if err != nil {
			t.Fatal(err)
		}
		var spec *specs.Spec
		if json.Unmarshal(text, &spec) != nil || validate.SpecOnHostMounts(spec, "/") != nil {
			continue
		}
		valid++
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Fatalf("seed %d: %v for\n%s", seed, p, text)
				}
			}()
			p, err := plan.Create(spec, plan.Options{
				Rootfs: "/", Bundle: "/", ID: "random", Home: "/",
				IsDir: func(string) (bool, error) { return true, nil },
			})
			if err != nil {
				return
			}
			plans++
			for _, f := range []plan.Features{{}, {MountSetattr: true}} {
				if _, err := p.Encode(f); err != nil {
					t.Errorf("seed %d: %v for\n%s", seed, err, text)
				}
			}
		}()
	}
	t.Logf("seed %d: %d were valid, %d became plans", seed, valid, plans)
	if plans == 0 {
		t.Error("none became a plan")
	}
}
