package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/output"
)

// bootstrapToken describes a token with which machines join.
type bootstrapToken struct {
	ID          string    `json:"id"`
	Expires     time.Time `json:"expires,omitzero"` // zero for never
	Description string    `json:"description,omitempty"`
	Groups      []string  `json:"groups,omitempty"`
}

// newToken is a token that was made, and what else a machine needs to join.
type newToken struct {
	bootstrapToken
	Token  string `json:"token"`
	Server string `json:"server"`
	CAHash string `json:"caHash"`
	// CertificateKey opens the cluster's keys, for a token of control-plane nodes.
	CertificateKey string `json:"certificateKey,omitempty"`
	// Join is the whole command.
	Join string `json:"join"`
}

func tokenCommand(p *place) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "make, list and delete tokens with which machines join the cluster",
		Long: `A token lets a machine join the cluster as a node, until it expires or is deleted. Tokens are Secrets in kube-system,
as kubeadm makes them. The cluster needs a --bind-address that other machines reach.`,
		Example: `  coracle token create
  coracle token list
  coracle token delete abcdef`,
	}
	cmd.AddCommand(tokenCreateCommand(p), tokenListCommand(p), tokenDeleteCommand(p))
	return cmd
}

// tokens has the cluster's API act on tokens, as the administrator.
func (p place) tokens(cmd *cobra.Command, input string, into any, args ...string) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := os.Stat(p.kubeconfig()); err != nil {
		return fmt.Errorf("token: no cluster of this machine: %w; 'coracle up%s' starts one", err, p.flags())
	}
	if err := kubeToolReading(ctx, input, into, append([]string{"token", "--kubeconfig", p.kubeconfig()}, args...)...); err != nil {
		return fmt.Errorf("token: %w", err)
	}
	return nil
}

// longestToken bounds what is read of a file with a token or a key, in bytes.
const longestToken = 1 << 10

// givenToken returns the token that was given itself, or in a file: - is standard input.
func givenToken(given, file string, input io.Reader) (string, error) {
	if given != "" {
		return given, nil
	}
	return secretIn("token-file", file, "token, ID.SECRET,", input)
}

// secretIn returns the only word of the file that a flag names: - is standard input.
func secretIn(flag, file, what string, input io.Reader) (string, error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", fmt.Errorf("--%s: %w", flag, err)
		}
		defer func() { _ = f.Close() }()
		input = f
	}
	text, err := io.ReadAll(io.LimitReader(input, longestToken+1))
	if err != nil {
		return "", fmt.Errorf("--%s %s: %w", flag, file, err)
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" || len(text) > longestToken || strings.ContainsAny(secret, " \t\r\n") {
		return "", fmt.Errorf("--%s %s: it has to hold one %s and nothing else", flag, file, what)
	}
	return secret, nil
}

func tokenCreateCommand(p *place) *cobra.Command {
	var format output.Format
	var given, file, description string
	var ttl time.Duration
	var controlPlane bool
	cmd := &cobra.Command{
		Use:   "create",
		Short: "make a token and print the command that joins a machine with it",
		Example: `  coracle token create
  coracle token create --ttl 1h --description 'rack 7' -o json
  coracle token create --control-plane      # for a machine that becomes a control-plane node, once`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if controlPlane && !cmd.Flags().Changed("ttl") {
				ttl = certificateKeyLife
			}
			args := []string{"create", "--ttl", ttl.String(), "--description", description}
			if given != "" || file != "" {
				var err error
				if given, err = givenToken(given, file, cmd.InOrStdin()); err != nil {
					return fmt.Errorf("token: %w", err)
				}
				args = append(args, "--token-stdin")
			}
			if controlPlane {
				text, err := json.Marshal(remembered(*p).forControlPlane())
				if err != nil {
					return err
				}
				args = append(args, "--control-plane-keys", filepath.Join(p.kubeRoot(), "pki"), "--settings", string(text))
			}
			var made newToken
			if err := p.tokens(cmd, given, &made, args...); err != nil {
				return err
			}
			made.Join = fmt.Sprintf("coracle join %s --token %s --ca-hash %s", made.Server, made.Token, made.CAHash)
			if controlPlane {
				made.Join = fmt.Sprintf("coracle up --join %s --token %s --ca-hash %s --certificate-key %s", made.Server, made.Token, made.CAHash,
					made.CertificateKey)
			}
			return format.Print(cmd.OutOrStdout(), made, func(w io.Writer) { _, _ = fmt.Fprintln(w, made.Join) })
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 24*time.Hour, "how long the token is valid; 0 for no end")
	cmd.Flags().BoolVar(&controlPlane, "control-plane", false,
		"for one machine that becomes a control-plane node: it gets the cluster's keys, and the token lasts for 2 h at most")
	cmd.Flags().StringVar(&description, "description", "", "what the token is for")
	cmd.Flags().StringVar(&given, "token", "", "the `TOKEN`, such as abcdef.0123456789abcdef (default: a random one)")
	cmd.Flags().StringVar(&file, "token-file", "", "`FILE` with the token; - for standard input")
	cmd.MarkFlagsMutuallyExclusive("token", "token-file")
	format.Define(cmd)
	return cmd
}

// certificateKeyLife is the longest that the keys of a cluster may wait for a machine.
const certificateKeyLife = 2 * time.Hour

func tokenListCommand(p *place) *cobra.Command {
	var format output.Format
	cmd := &cobra.Command{
		Use: "list", Short: "list tokens, the next to expire first", Args: cobra.NoArgs,
		Example: "  coracle token list\n  coracle token list -o yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			all := []bootstrapToken{}
			if err := p.tokens(cmd, "", &all, "list"); err != nil {
				return err
			}
			return format.Print(cmd.OutOrStdout(), all, func(w io.Writer) { tokenRows(w, all, time.Now()) })
		},
	}
	format.Define(cmd)
	return cmd
}

func tokenRows(w io.Writer, all []bootstrapToken, now time.Time) {
	output.Row(w, "ID", "EXPIRES", "LEFT", "DESCRIPTION")
	for _, t := range all {
		at, left := "never", ""
		if !t.Expires.IsZero() {
			at, left = t.Expires.Local().Format(time.DateTime), max(t.Expires.Sub(now), 0).Truncate(time.Second).String()
		}
		output.Row(w, t.ID, at, left, t.Description)
	}
}

func tokenDeleteCommand(p *place) *cobra.Command {
	return &cobra.Command{
		Use: "delete ID", Short: "delete a token, so that no machine joins with it any more", Args: cobra.ExactArgs(1),
		Example: "  coracle token delete abcdef",
		RunE:    func(cmd *cobra.Command, args []string) error { return p.tokens(cmd, "", nil, "delete", "--", args[0]) },
	}
}
