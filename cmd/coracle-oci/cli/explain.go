package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle-oci/explain"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
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
		Short: "Describe the container of a bundle, and warn about dangerous settings",
		Long: `explain prints what create would do with a bundle (by default the working directory),
in order. It warns about settings that would let the container's program reach the
host, and says what to set instead. It runs and creates nothing, and needs no rights:
it describes the container that root would get on this host. It prints the plan that
create carries out, so the two cannot differ.`,
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
			e, err := explainRequest(process, explain.Request{
				ID: id, Spec: spec, Bundle: bundle, CgroupVersion: version, Libcontainer: a.whyLibcontainer(),
			})
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
					fmt.Fprintf(a.stdout, "%3d  %s\n", i+1, explain.Printable(s))
				}
				return nil
			}
			return e.Write(a.stdout)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&output, "output", "o", "table", "table, json or yaml")
	f.StringVar(&id, "id", "ID", "the id that the container would have")
	f.StringVar(&process, "process", "", "explain another process in the container: a file with an OCI process, as for exec")
	f.BoolVar(&steps, "steps", false, "print only the operations, with the names in errors of create")
	f.IntVar(&version, "cgroup-version", 0, "explain for a usual host with cgroups of version 1 or 2 (default: this host)")
	return cmd
}

// whyLibcontainer returns the global option that chooses libcontainer, or "".
func (a *app) whyLibcontainer() string {
	switch {
	case a.engineName == engine.Libcontainer:
		return "--engine says so"
	case a.systemdCgroup:
		return "--systemd-cgroup"
	}
	return ""
}

// explainRequest explains a container, or, if there is a file, the process in it.
func explainRequest(file string, r explain.Request) (*explain.Document, error) {
	if file == "" {
		return explain.Container(r)
	}
	p, err := runtime.LoadProcess(file)
	if err != nil {
		return nil, err
	}
	if err := validate.Process(p); err != nil {
		return nil, err
	}
	return explain.Exec(r, p)
}
