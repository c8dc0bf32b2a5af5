package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/daemon"
	"github.com/coracle-project/coracle/cmd/coracle/kubesocket"
	"github.com/coracle-project/coracle/cmd/coracle/output"
)

// The answer of the cluster process: cluster/why has the words.
type (
	whyAnswer struct {
		Source      whyEnd          `json:"source"`
		Destination whyEnd          `json:"destination"`
		Connections []whyConnection `json:"connections"`
		Notes       []string        `json:"notes,omitempty"`
	}
	whyEnd struct {
		Asked     string   `json:"asked"`
		Kind      string   `json:"kind"`
		Name      string   `json:"name,omitempty"`
		Node      string   `json:"node,omitempty"`
		Addresses []string `json:"addresses,omitempty"`
	}
	whyConnection struct {
		Destination string        `json:"destination"`
		Protocol    string        `json:"protocol"`
		Service     *whyService   `json:"service,omitempty"`
		Endpoints   []whyEndpoint `json:"endpoints,omitempty"`
		Verdict     string        `json:"verdict"`
		Because     string        `json:"because,omitempty"`
	}
	whyService struct {
		Name            string `json:"name"`
		Port            string `json:"port,omitempty"`
		Way             string `json:"way"`
		LocalOnly       bool   `json:"localOnly,omitempty"`
		AffinitySeconds int    `json:"affinitySeconds,omitempty"`
		Masquerade      bool   `json:"masquerade,omitempty"`
	}
	whyEndpoint struct {
		Address string     `json:"address"`
		Pod     string     `json:"pod,omitempty"`
		Node    string     `json:"node,omitempty"`
		Used    bool       `json:"used"`
		Because string     `json:"because,omitempty"`
		Policy  *whyPolicy `json:"policy,omitempty"`
	}
	whyPolicy struct {
		Allowed bool         `json:"allowed"`
		Egress  whyDirection `json:"egress"`
		Ingress whyDirection `json:"ingress"`
	}
	whyDirection struct {
		Allowed   bool     `json:"allowed"`
		Selecting []string `json:"selecting,omitempty"`
		Allowing  []string `json:"allowing,omitempty"`
		Because   string   `json:"because,omitempty"`
	}
)

// whyPatience is longer than the cluster process takes for an answer.
const whyPatience = 15 * time.Second

func whyCommand(p *place) *cobra.Command {
	var format output.Format
	var namespace string
	cmd := &cobra.Command{
		Use:   "why SOURCE DESTINATION[:PORT]",
		Short: "say which Service, endpoint and policy decide about a connection",
		Long: `Show what this node does with a connection from SOURCE to DESTINATION: what a name resolves to, which Service has the
address, which endpoints it may get, and which policies allow or deny it. Nothing is sent: the cluster process
answers from the data of the node's rules.

SOURCE is pod/NAME, NAMESPACE/NAME, node/NAME or an IP address. DESTINATION is pod/NAME, svc/NAME, NAMESPACE/NAME, an
IP address, or a DNS name as the source would use it. pod/NAMESPACE/NAME and svc/NAMESPACE/NAME name another namespace.
PORT is a number or a port's name, 53/udp for another protocol than TCP. Without PORT, all ports of the Service or pod
are shown.`,
		Example: `  coracle why pod/visitor svc/web
  coracle why -n shop pod/cart db.storage:5432
  coracle why shop/cart 10.96.0.10:53/udp
  coracle why 192.0.2.7 192.0.2.10:30080           # from outside to a node port
  coracle why pod/cart svc/storage/db -o json | jq '.connections[].verdict'`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), whyPatience)
			defer cancel()
			var answer whyAnswer
			query := url.Values{"namespace": {namespace}, "from": {args[0]}, "to": {args[1]}}
			err := kubesocket.Ask(ctx, p.kubeSocket(), "/why", query, &answer)
			if errors.Is(err, kubesocket.ErrNone) {
				return fmt.Errorf("why: %w; 'coracle up%s' starts it", err, p.flags())
			}
			if err != nil {
				return fmt.Errorf("why: %w", err)
			}
			out := cmd.OutOrStdout()
			if format == "table" {
				return answer.print(out)
			}
			return format.Print(out, answer, nil)
		},
		ValidArgsFunction: p.completeEnds(&namespace),
	}
	format.Define(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace of names that have none")
	return cmd
}

// print writes the answer as text.
func (a *whyAnswer) print(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "from  %s\nto    %s\n", a.Source.words(), a.Destination.words())
	for _, note := range a.Notes {
		fmt.Fprintf(&b, "note  %s\n", note)
	}
	for _, c := range a.Connections {
		b.WriteString("\n")
		c.print(&b)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func (e whyEnd) words() string {
	what := e.Kind
	if e.Name != "" {
		what += " " + e.Name
	}
	if len(e.Addresses) > 0 {
		what += " (" + strings.Join(e.Addresses, ", ") + ")"
	}
	if e.Node != "" && e.Kind == "pod" {
		what += " on node " + e.Node
	}
	return what
}

func (c *whyConnection) print(b *strings.Builder) {
	fmt.Fprintf(b, "%s/%s: %s", c.Destination, c.Protocol, c.Verdict)
	if c.Because != "" {
		fmt.Fprintf(b, ": %s", c.Because)
	}
	b.WriteString("\n")
	if s := c.Service; s != nil {
		fmt.Fprintf(b, "  %s of Service %s", s.Way, s.Name)
		if s.Port != "" {
			fmt.Fprintf(b, ", port %s", s.Port)
		}
		if s.LocalOnly {
			b.WriteString("; its traffic policy is Local: only endpoints of this node")
		}
		if s.AffinitySeconds > 0 {
			fmt.Fprintf(b, "; a client keeps its endpoint for %d s", s.AffinitySeconds)
		}
		if s.Masquerade {
			b.WriteString("; the endpoint sees the node's address as the source")
		}
		b.WriteString("\n")
	}
	used := func(e whyEndpoint) bool { return e.Used }
	for _, e := range slices.DeleteFunc(slices.Clone(c.Endpoints), func(e whyEndpoint) bool { return !used(e) }) {
		e.print(b, c.Service != nil)
	}
	for _, e := range slices.DeleteFunc(slices.Clone(c.Endpoints), used) {
		e.print(b, c.Service != nil)
	}
}

func (e *whyEndpoint) print(b *strings.Builder, ofService bool) {
	switch {
	case !e.Used:
		b.WriteString("  not used: ")
	case ofService:
		b.WriteString("  endpoint ")
	default:
		b.WriteString("  no Service: ")
	}
	b.WriteString(e.Address)
	switch {
	case e.Pod != "":
		fmt.Fprintf(b, ", pod %s on node %s", e.Pod, e.Node)
	case e.Node != "":
		fmt.Fprintf(b, ", node %s itself", e.Node)
	case e.Used:
		b.WriteString(", no pod or node of this cluster")
	}
	if e.Because != "" {
		fmt.Fprintf(b, ": %s", e.Because)
	}
	b.WriteString("\n")
	if e.Policy != nil {
		e.Policy.Egress.print(b, "egress ")
		e.Policy.Ingress.print(b, "ingress")
	}
}

func (d whyDirection) print(b *strings.Builder, name string) {
	fmt.Fprintf(b, "    %s ", name)
	switch {
	case d.Because != "":
		fmt.Fprintf(b, "%s: %s", allowed(d.Allowed), d.Because)
	case len(d.Selecting) == 0:
		fmt.Fprintf(b, "%s: no policy selects the pod", allowed(d.Allowed))
	case d.Allowed:
		fmt.Fprintf(b, "allowed by %s", strings.Join(d.Allowing, ", "))
	default:
		fmt.Fprintf(b, "denied: no rule of %s allows it", strings.Join(d.Selecting, ", "))
	}
	b.WriteString("\n")
}

func allowed(yes bool) string {
	if yes {
		return "allowed"
	}
	return "denied"
}

// completeEnds offers pods, and Services for the destination, of a namespace.
func (p *place) completeEnds(namespace *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 1 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), daemon.CompletionLimit)
		defer cancel()
		client, err := openAPI(p.kubeconfig())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer client.http.CloseIdleConnections()
		names := client.names(ctx, *namespace, "pods", "pod/")
		if len(args) == 0 {
			return names, cobra.ShellCompDirectiveNoFileComp
		}
		names = append(names, client.names(ctx, *namespace, "services", "svc/")...)
		return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace // :PORT may follow
	}
}

// names are those of the objects of a kind, each with a prefix; none if they cannot be listed.
func (a *api) names(ctx context.Context, namespace, resource, prefix string) (all []string) {
	var list struct {
		Items []struct {
			Metadata objectName `json:"metadata"`
		} `json:"items"`
	}
	if err := a.ask(ctx, "/api/v1/namespaces/"+url.PathEscape(namespace)+"/"+resource, nil, &list); err != nil {
		return nil
	}
	for _, o := range list.Items {
		all = append(all, prefix+o.Metadata.Name)
	}
	return all
}
