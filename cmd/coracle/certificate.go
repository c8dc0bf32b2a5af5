package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/output"
)

// certificate describes a certificate in a file of this machine.
type certificate struct {
	File    string    `json:"file"`
	Subject string    `json:"subject"`
	Issuer  string    `json:"issuer"`
	Made    time.Time `json:"made"`
	Expires time.Time `json:"expires"`
	// Replaced is set for an authority that was replaced and is trusted.
	Replaced time.Time `json:"replaced,omitzero"`
	Warning  string    `json:"warning,omitempty"`
}

func certificateCommand(p *place) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certificate",
		Short: "check and replace the certificates and keys of this machine's cluster",
		Long: `Certificates are renewed 30 days before they expire while the cluster runs, and when it starts. "check" says when they
expire. "rotate" replaces them at once. It revokes nothing: what the authority has signed is valid until it expires, or
until the authority is replaced with "rotate --authority" and its --finish.`,
		Example: `  coracle certificate check
  coracle certificate rotate
  coracle certificate rotate --service-account-key
  coracle certificate rotate --authority`,
	}
	cmd.AddCommand(certificateCheckCommand(p), certificateRotateCommand(p))
	return cmd
}

// certificates has the cluster's program act on this machine's certificates. It may take a minute,
// and more.
func (p place) certificates(cmd *cobra.Command, more time.Duration, into any, args ...string) error {
	if os.Geteuid() != 0 {
		return errors.New("certificate: only root may read the cluster's keys: use sudo")
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Minute+more)
	defer cancel()
	if err := kubeTool(ctx, into, append([]string{"certificate", "--root", p.kubeRoot(), "--state", p.kubeState()}, args...)...); err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	return nil
}

func certificateCheckCommand(p *place) *cobra.Command {
	var format output.Format
	cmd := &cobra.Command{
		Use: "check", Short: "list certificates, the next to expire first, and fail if one was not renewed in time",
		Aliases: []string{"list"},
		Example: "  coracle certificate check\n  coracle certificate check -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all := []certificate{}
			if err := p.certificates(cmd, 0, &all, "list"); err != nil {
				return err
			}
			if err := format.Print(cmd.OutOrStdout(), all, func(w io.Writer) { certificateRows(w, all, time.Now()) }); err != nil {
				return err
			}
			for _, c := range all {
				if c.Warning != "" {
					return fmt.Errorf("certificate: %s: %s; the reason may be in %s", c.File, c.Warning, p.kubeLog())
				}
			}
			return nil
		},
	}
	format.Define(cmd)
	return cmd
}

func certificateRows(w io.Writer, all []certificate, now time.Time) {
	output.Row(w, "FILE", "SUBJECT", "ISSUER", "EXPIRES", "LEFT", "NOTE")
	for _, c := range all {
		note := c.Warning
		if !c.Replaced.IsZero() {
			note = "replaced on " + c.Replaced.Local().Format(time.DateTime) + "; trusted until 'rotate --authority --finish'"
		}
		left := max(c.Expires.Sub(now), 0)
		output.Row(w, c.File, c.Subject, c.Issuer, c.Expires.Local().Format(time.DateTime), fmt.Sprintf("%dd", int(left.Hours()/24)), note)
	}
}

// rotation is what `coracle certificate rotate` replaces.
type rotation struct {
	key, authority, finish bool
	timeout                time.Duration
}

func certificateRotateCommand(p *place) *cobra.Command {
	var r rotation
	cmd := &cobra.Command{
		Use: "rotate", Short: "replace all certificates, the key of service account tokens, or the authority, without an interruption",
		Long: `rotate replaces all certificates of the cluster's first machine but the authorities', also that in the kubeconfig of the
administrator. With --service-account-key it replaces the key that signs service account tokens instead: the new key
signs at once, and the former one verifies the tokens that it has signed until they have expired, for a year. Tokens in
Secrets do not expire: those that were made before have to be made again within that year.

The cluster need not run for these: its next start replaces them. A rotate that was cut off is finished within a day, or by
the next start; running it again does no harm.

With --authority it makes another authority, which signs at once and replaces all certificates. The former one is trusted,
too: copies of the former kubeconfig work. The nodes follow by themselves; the command waits for them and names those that
do not. Then --authority --finish ends the trust in the former authority, and so in all that it has signed. It refuses
while a node does not follow.`,
		Example: "  coracle certificate rotate\n  coracle certificate rotate --service-account-key\n" +
			"  coracle certificate rotate --authority\n  coracle certificate rotate --authority --finish",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.run(cmd, p) },
	}
	cmd.Flags().BoolVar(&r.key, "service-account-key", false, "replace the key that signs service account tokens instead")
	cmd.Flags().BoolVar(&r.authority, "authority", false, "replace the authority, and all certificates with it")
	cmd.Flags().BoolVar(&r.finish, "finish", false, "with --authority, when all nodes follow: stop trusting the former one")
	cmd.Flags().DurationVar(&r.timeout, "timeout", 2*time.Minute, "how long --authority waits for the nodes")
	cmd.MarkFlagsMutuallyExclusive("service-account-key", "authority")
	return cmd
}

func (r rotation) run(cmd *cobra.Command, p *place) error {
	if r.finish && !r.authority {
		return errors.New("certificate: --finish is for --authority")
	}
	args, more, said := []string{"rotate", "--certificates"}, time.Duration(0), "all certificates are replaced"
	switch {
	case (r.key || r.authority) && len(remembered(*p).Etcd) > 0:
		return errors.New("certificate: the key cannot be replaced with --etcd-servers: other control-plane nodes may use that etcd, and would " +
			"refuse what a new key has signed")
	case r.key:
		args, said = []string{"rotate", "--service-account-key"}, "the key of service account tokens is replaced"
	case r.finish:
		args, said = []string{"rotate", "--finish"}, "the former authority is not trusted any more"
	case r.authority:
		args, more = []string{"rotate", "--authority", "--timeout", r.timeout.String()}, r.timeout
		said = "the authority is replaced, and all nodes follow: 'coracle certificate rotate --authority --finish' stops trusting the former one"
	}
	var answer struct {
		Running bool     `json:"running"`
		Lagging []string `json:"lagging"`
	}
	if err := p.certificates(cmd, more, &answer, args...); err != nil {
		return err
	}
	if len(answer.Lagging) > 0 {
		return fmt.Errorf("certificate: nodes do not follow the new authority: %s; the former one stays trusted: run 'coracle certificate rotate "+
			"--authority' again to wait for them, or 'coracle node remove' those that are gone", strings.Join(answer.Lagging, "; "))
	}
	if !answer.Running {
		said += " at the next start: the cluster does not run"
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), said)
	return err
}
