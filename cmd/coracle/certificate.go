package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/output"
)

// certificate is what can be told of a certificate of this machine.
type certificate struct {
	File    string    `json:"file"`
	Subject string    `json:"subject"`
	Issuer  string    `json:"issuer"`
	Made    time.Time `json:"made"`
	Expires time.Time `json:"expires"`
	// TrustedUntil is set for an authority that was replaced.
	TrustedUntil time.Time `json:"trustedUntil,omitzero"`
	Warning      string    `json:"warning,omitempty"`
}

func certificateCommand(p *place) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certificate",
		Short: "check and replace the certificates and keys of this machine's cluster",
		Long: `Certificates are renewed 30 days before they expire while the cluster runs, and when it starts. "check" says when they
expire. "rotate" replaces them at once. It revokes nothing: the authority stays, and what it has signed before is valid
until it expires.`,
		Example: `  coracle certificate check
  coracle certificate rotate
  coracle certificate rotate --service-account-key`,
	}
	cmd.AddCommand(certificateCheckCommand(p), certificateRotateCommand(p))
	return cmd
}

// certificates has the cluster's program act on this machine's certificates.
func (p place) certificates(cmd *cobra.Command, into any, args ...string) error {
	if os.Geteuid() != 0 {
		return errors.New("certificate: only root may read the cluster's keys: use sudo")
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
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
			if err := format.Check(); err != nil {
				return err
			}
			all := []certificate{}
			if err := p.certificates(cmd, &all, "list"); err != nil {
				return err
			}
			if err := format.Print(cmd.OutOrStdout(), all, func(w io.Writer) { certificateRows(w, all, time.Now()) }); err != nil {
				return err
			}
			for _, c := range all {
				if c.Warning != "" {
					return fmt.Errorf("certificate: %s: %s; %s may tell why", c.File, c.Warning, p.kubeLog())
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
		if !c.TrustedUntil.IsZero() {
			note = "replaced; trusted until " + c.TrustedUntil.Local().Format(time.DateTime)
		}
		left := max(c.Expires.Sub(now), 0)
		output.Row(w, c.File, c.Subject, c.Issuer, c.Expires.Local().Format(time.DateTime), fmt.Sprintf("%dd", int(left.Hours()/24)), note)
	}
}

func certificateRotateCommand(p *place) *cobra.Command {
	var keyOnly bool
	cmd := &cobra.Command{
		Use: "rotate", Short: "replace all certificates, or the key of service account tokens, without an interruption",
		Long: `rotate replaces all certificates of the cluster's first machine but the authorities', also that in the kubeconfig of the
administrator. With --service-account-key it replaces the key that signs service account tokens instead: the new key
signs at once, and the former one verifies the tokens that it has signed until they have expired, for a year. Tokens in
Secrets do not expire: those that were made before have to be made again within that year.

The cluster need not run: its next start replaces them. A rotate that was cut off is finished within a day, or by the
next start; running it again does no harm.`,
		Example: "  coracle certificate rotate\n  coracle certificate rotate --service-account-key",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			what, said := "--certificates", "all certificates are replaced"
			if keyOnly && len(remembered(*p).Etcd) > 0 {
				return errors.New("certificate: an etcd of --etcd-servers may have other control-plane nodes, which would refuse the tokens of a new key: " +
					"the key cannot be replaced")
			}
			if keyOnly {
				what, said = "--service-account-key", "the key of service account tokens is replaced"
			}
			var answer struct {
				Running bool `json:"running"`
			}
			if err := p.certificates(cmd, &answer, "rotate", what); err != nil {
				return err
			}
			if !answer.Running {
				said += " when the cluster is started: it does not run"
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), said)
			return err
		},
	}
	cmd.Flags().BoolVar(&keyOnly, "service-account-key", false, "replace the key that signs service account tokens instead")
	return cmd
}
