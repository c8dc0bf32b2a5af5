package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/validate"
)

func (a *app) explainCommand() *cobra.Command {
	var (
		output, id, process string
		steps               bool
		version             int
	)
	cmd := &cobra.Command{
		Use:   "explain [flags] [BUNDLE]",
		Short: "Tell what a container from a bundle would be, and what is dangerous about it",
		Long: `explain prints what create would do with a bundle (the working directory if none
is given), in order, and warns about what would let the container's program reach
the host, with what to set instead. It runs nothing, makes nothing and needs no
rights: the container is the one that root would get on this host. What it prints
is made of the plan that create carries out, so the two cannot differ.`,
		Example: `  coracle-oci explain box
  coracle-oci explain --output json box | jq '.warnings[].problem'
  coracle-oci explain --steps box
  coracle-oci explain --process process.json box           # what exec would start`,
		Args: cobra.MaximumNArgs(1),
		// The usual one makes the directory of the containers' state for a user.
		PersistentPreRunE: func(*cobra.Command, []string) (err error) {
			a.log, err = openLog(a.logFile, a.logFormat, a.debug)
			return err
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if output != "table" && output != "json" && output != "yaml" {
				return fmt.Errorf("--output %q is unknown, use table, json or yaml", output)
			}
			if output == "yaml" && a.extra == nil {
				return errCompanion
			}
			bundle := "."
			if len(args) > 0 {
				bundle = args[0]
			}
			m := makeFlags{bundle: bundle}
			spec, bundle, err := m.load()
			if err != nil {
				return err
			}
			if err := runtime.ValidateID(id); err != nil {
				return err
			}
			var e *explanation
			if process == "" {
				e, err = a.explain(id, spec, bundle, version)
			} else {
				e, err = a.explainExec(process, id, spec, bundle, version)
			}
			if err != nil {
				return err
			}
			switch {
			case output == "json":
				return printJSON(a.stdout, e)
			case output == "yaml":
				data, err := a.extra.YAML(e)
				if err == nil {
					_, err = a.stdout.Write(data)
				}
				return err
			case steps:
				for i, s := range e.Steps {
					fmt.Fprintf(a.stdout, "%3d  %s\n", i+1, printable(s))
				}
				return nil
			}
			return e.write(a.stdout)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&output, "output", "o", "table", "table, json or yaml")
	f.StringVar(&id, "id", "ID", "the id that the container would have")
	f.StringVar(&process, "process", "", "explain a further process in the container: a file with an OCI process, as exec takes it")
	f.BoolVar(&steps, "steps", false, "print each operation alone, as errors of create name them")
	f.IntVar(&version, "cgroup-version", 0, "explain for a usual host with cgroups of version 1 or 2 (default: this host)")
	return cmd
}

func (a *app) explain(id string, spec *specs.Spec, bundle string, cgroupVersion int) (*explanation, error) {
	o, err := engine.PlanOptions(id, spec, bundle)
	if err != nil {
		return nil, err
	}
	switch cgroupVersion {
	case 0:
		if o.Cgroup, err = engine.CgroupFacts(id, spec); err != nil {
			return nil, err
		}
	case 1, 2:
		o.Cgroup = usualCgroup(cgroupVersion, cgroupName(id, spec))
	default:
		return nil, fmt.Errorf("--cgroup-version %d is unknown, use 1 or 2", cgroupVersion)
	}
	e := newExplanation(bundle)
	isDir := o.IsDir
	o.IsDir = func(path string) (bool, error) {
		dir, err := isDir(path)
		if err != nil {
			e.warn(high, "mounts", fmt.Sprintf("the source %s cannot be used: %v", path, errors.Unwrap(err)),
				"create will fail", "make it before, or give another source")
			return filepath.Ext(path) == "", nil // a guess
		}
		return dir, nil
	}
	planned := spec
	p, err := plan.Create(spec, o)
	if errors.Is(err, plan.ErrUnsupported) {
		e.Engine, e.Because = engine.Libcontainer, err.Error()
		e.Warnings = nil
		planned = simplified(spec)
		p, err = plan.Create(planned, o)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case a.engineName == engine.Libcontainer:
		e.Engine, e.Because = engine.Libcontainer, "--engine says so"
	case a.systemdCgroup:
		e.Engine, e.Because = engine.Libcontainer, "--systemd-cgroup"
	}
	e.fromPlan(p)
	if planned != spec {
		e.Namespaces = namespacesOfSpec(spec)
	}
	e.fromSpec(spec, &o)
	if err := e.seccomp(spec, o.Seccomp); err != nil {
		return nil, err
	}
	e.dangers(spec)
	return e, nil
}

// explainExec explains a further process of a container: the container's surroundings, and
// the process in the place of its first.
func (a *app) explainExec(file, id string, spec *specs.Spec, bundle string, cgroupVersion int) (*explanation, error) {
	p, err := runtime.LoadProcess(file)
	if err != nil {
		return nil, err
	}
	if err := validate.Process(p); err != nil {
		return nil, err
	}
	in := *spec
	in.Process, in.Hooks = p, nil // hooks belong to the container's life
	e, err := a.explain(id, &in, bundle, cgroupVersion)
	if err != nil {
		return nil, err
	}
	o, err := engine.PlanOptions(id, &in, bundle)
	if err != nil {
		return nil, err
	}
	x, err := plan.Exec(&specs.Spec{Linux: &specs.Linux{}, Process: p}, p, e.joinable(), o)
	if err != nil {
		return nil, err
	}
	e.Process, e.Steps = newExplanation(bundle).Process, nil
	for _, op := range x.Ops {
		e.Steps = append(e.Steps, op.String())
		e.setting(op)
	}
	return e, nil
}

// simplified is a configuration that a plan can be made of although it asks for what no plan
// has: without that. The explanation says which engine makes the container, and why.
func simplified(in *specs.Spec) *specs.Spec {
	s, l := *in, specs.Linux{}
	if in.Linux != nil {
		l = *in.Linux
	}
	s.Linux = &l
	isMount := func(n specs.LinuxNamespace) bool { return n.Type == specs.MountNamespace }
	l.Namespaces = append(slices.DeleteFunc(slices.Clone(l.Namespaces), isMount), specs.LinuxNamespace{Type: specs.MountNamespace})
	return &s
}
