package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/cmd/coracle/daemon"
	"github.com/coracle-project/coracle/cmd/coracle/output"
)

// health is one line of status.
type health struct {
	// Node is where the component runs, if the machine has several nodes.
	Node      string `json:"node,omitempty"`
	Component string `json:"component"`
	Healthy   bool   `json:"healthy"`
	Version   string `json:"version,omitempty"`
	// Message says where it is reached, or what is wrong.
	Message string `json:"message"`
	// Of the parts of the cluster process: since when Healthy is what it is, and what went wrong
	// last, which may be over.
	Since       time.Time `json:"since,omitzero"`
	LastError   string    `json:"lastError,omitempty"`
	LastErrorAt time.Time `json:"lastErrorAt,omitzero"`
	// Warnings are what an operator should know though the part is healthy.
	Warnings []string `json:"warnings,omitempty"`
}

func statusCommand(p *place) *cobra.Command {
	var format output.Format
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show what runs and what is wrong; exit with 1 if anything is wrong",
		Example: `  coracle status
  coracle status -o json
  coracle --node boat-2 status      # of one of the nodes of "coracle up --nodes"`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
			defer cancel()
			all := look(ctx, *p)
			if err := format.Print(cmd.OutOrStdout(), all, func(w io.Writer) { healthRows(w, all) }); err != nil {
				return err
			}
			for _, h := range all {
				if !h.Healthy {
					return fmt.Errorf("not all is well; 'coracle up%s' starts what does not run", p.flags())
				}
			}
			return nil
		},
	}
	format.Define(cmd)
	return cmd
}

// look asks each part how it is. The parts of the cluster process are asked also if the API server
// does not answer: they may say why.
func look(ctx context.Context, p place) []health {
	all := lookAtPrograms(ctx, p)
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), longestTry) // others may have used up ctx
	defer cancel()
	parts, err := partsHealth(own, p)
	if err != nil {
		parts = []health{line("cluster process", "", "", err)}
	}
	all = slices.Concat(all, upgradeHealth(p), preloadHealth(p), lookAtAPI(ctx, p), parts, bgpHealth(ctx, p))
	o := remembered(p)
	if !o.several() {
		return all
	}
	for i := range all {
		all[i].Node = o.Node
	}
	for i, further := range p.further(o) {
		if p.hasLeft(i + 2) {
			all = append(all, health{
				Node: further.node, Component: "node", Healthy: true,
				Message: fmt.Sprintf("it has left the cluster; 'coracle up%s' has it join again", p.flags()),
			})
			continue
		}
		all = append(all, lookAtFurther(ctx, further)...)
	}
	return all
}

// lookAtFurther asks the parts of a further node how they are. That the Node is Ready is among what
// the API server says.
func lookAtFurther(ctx context.Context, p place) []health {
	all := lookAtPrograms(ctx, p)
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), longestTry)
	defer cancel()
	parts, err := partsHealth(own, p)
	if err != nil {
		parts = []health{line("agent", "", "", err)}
	}
	all = slices.Concat(all, parts, bgpHealth(ctx, p))
	for i := range all {
		all[i].Node = p.node
	}
	return all
}

func lookAtPrograms(ctx context.Context, p place) []health {
	version, err := runtimeHealth(ctx, p.Socket())
	all := []health{line("coracled", version, "serves "+p.Socket(), inWords(p.Socket(), err))}

	pid, err := holder(p.supervisor())
	if err == nil && pid == 0 {
		err = errors.New("it does not run")
	}
	return append(all, line("supervisor", "", fmt.Sprintf("pid %d", pid), err))
}

// nodeLine is the component that says how a node is.
func nodeLine(name string) string { return "node " + name }

// lookAtMember asks the cluster elsewhere how this machine's node is.
func lookAtMember(ctx context.Context, p place, o upOptions) health {
	var waits string
	err := kubeTool(ctx, &waits, "agent", "await", "--root", p.kubeRoot(), "--timeout", longestTry.String())
	if err == nil && waits != "" {
		err = errors.New(waits)
	}
	return line(nodeLine(o.Node), "", "is Ready in the cluster at "+o.Server, err)
}

func lookAtAPI(ctx context.Context, p place) []health {
	if o := remembered(p); o.Server != "" {
		return []health{lookAtMember(ctx, p, o)}
	}
	client, err := openAPI(p.kubeconfig())
	if err != nil {
		return []health{line("apiserver", "", "", err)}
	}
	defer client.http.CloseIdleConnections()
	all := []health{line("apiserver", "", "serves "+client.server, client.ready(ctx))}
	nodes, err := client.nodes(ctx)
	if err != nil {
		return append(all, line("nodes", "", "", err))
	}
	for _, n := range nodes {
		ready := n.ready(time.Time{})
		ok, message := ready.Status == "True", ready.Message
		if troubles := n.troubles(p); ok && len(troubles) > 0 {
			ok, message = false, strings.Join(troubles, "; ")
		}
		all = append(all, health{Component: nodeLine(n.Metadata.Name), Healthy: ok, Version: n.Status.NodeInfo.KubeletVersion, Message: message})
	}
	return all
}

// inWords is what a person reads of an error of the runtime behind a socket.
func inWords(socket string, err error) error {
	if err == nil {
		return nil
	}
	if status.Code(err) == codes.Unavailable {
		if _, gone := os.Stat(socket); errors.Is(gone, fs.ErrNotExist) {
			return errors.New("it does not run")
		}
		return fmt.Errorf("it does not run, or does not answer: nothing can be reached at %s", socket)
	}
	if status.Code(err) == codes.DeadlineExceeded {
		return fmt.Errorf("it does not answer at %s", socket)
	}
	return daemon.New(func() string { return socket }).Plain(err)
}

func line(component, version, where string, err error) health {
	h := health{Component: component, Healthy: err == nil, Version: version, Message: where}
	if err != nil {
		h.Message = err.Error()
	}
	return h
}

func healthRows(w io.Writer, all []health) {
	several := slices.ContainsFunc(all, func(h health) bool { return h.Node != "" })
	row := output.NodeRow(w, several)
	row("NODE", "COMPONENT", "HEALTHY", "VERSION", "MESSAGE")
	for _, h := range all {
		row(h.Node, h.Component, h.Healthy, h.Version, h.told())
	}
}
