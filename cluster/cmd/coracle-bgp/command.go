package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cluster/bgp/speaker"
)

// Set by the linker.
var version, commit string

func versions() string {
	if v := strings.TrimSpace(version + " " + commit); v != "" {
		return v
	}
	return "v0.0.0-dev"
}

// options are the flags.
type options struct {
	dir, as string
	peers   []string
}

func command() *cobra.Command {
	var o options
	var check bool
	cmd := &cobra.Command{
		Use:   "coracle-bgp --as AS --peer PEER...",
		Short: "announce a node's routes to BGP routers",
		Long: `coracle-bgp announces the networks of a node's pods, and addresses of Services of type LoadBalancer, to BGP routers.
"coracle up --bgp-peer" runs it. The cluster's process writes what to announce to routes.json in --dir.

A peer is written as "ADDRESS as=AS [port=PORT] [password-file=FILE]". The file has the password of the connection in one line
(TCP MD5), and only root may read it. coracle-bgp connects to its peers, and listens on no port. It gives up root's
rights before the first connection. What peers announce is neither installed nor passed on.

Killed, it loses no route, because peers keep them for two minutes (graceful restart). SIGTERM withdraws them, unless
--dir has a file "keep".`,
		Example: `  coracle-bgp --as 64512 --peer "10.0.0.254 as=64500"
  coracle-bgp --as 64512 --peer "10.0.0.254 as=64500 port=1179 password-file=/etc/coracle/bgp-password" --peer "fd00::fe as=64500"
  coracle-bgp --as 64512 --peer "10.0.0.254 as=64500" --check`,
		Version:       versions(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("it takes flags only, and does not know what to do with %q: quote what follows --peer", strings.Join(args, " "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, err := o.read()
			if err != nil || check {
				return err
			}
			settings.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
			return announce(cmd.Context(), o.dir, settings)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.dir, "dir", "/run/coracle/bgp", "`DIRECTORY` of routes.json, and of the socket that tells how the peers are")
	f.StringVar(&o.as, "as", "", "`AS` of this node")
	f.StringArrayVar(&o.peers, "peer", nil, `router to announce to, such as "10.0.0.254 as=64500"; again for further ones`)
	f.BoolVar(&check, "check", false, "only say what is wrong with the flags, if anything")
	cmd.SetVersionTemplate("coracle-bgp {{.Version}}\n")
	return cmd
}

// read checks the flags, and reads the peers' passwords.
func (o options) read() (s speaker.Options, err error) {
	if o.as == "" {
		return s, errors.New("--as is missing: the AS of this node, such as 64512")
	}
	if s.AS, err = speaker.ParseAS(o.as); err != nil {
		return s, fmt.Errorf("--as: %w", err)
	}
	if !filepath.IsAbs(o.dir) {
		return s, fmt.Errorf("--dir %q is no absolute path", o.dir)
	}
	if s.Peers, err = speaker.Peers(o.peers); err != nil {
		return s, fmt.Errorf("--peer: %w", err)
	}
	return s, nil
}
