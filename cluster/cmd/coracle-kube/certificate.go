package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
	"github.com/coracle-project/coracle/cluster/pki"
)

// renewPath is where this process makes its credentials good, as a rotation says.
const renewPath = "/certificates/renew"

// rotated is the answer to `coracle certificate rotate`.
type rotated struct {
	// Running is whether the cluster process has done it; otherwise its next start does.
	Running bool `json:"running"`
	// Lagging are nodes that do not follow a new authority yet, and why.
	Lagging []string `json:"lagging,omitempty"`
}

// certificateCommand is what `coracle certificate` runs.
func certificateCommand() *cobra.Command {
	var root, state string
	cmd := &cobra.Command{
		Use: "certificate", Short: "list and replace the credentials of this machine's cluster",
		Hidden: true, // coracle certificate is for people
	}
	cmd.PersistentFlags().StringVar(&root, "root", "/var/lib/coracle/kube", "directory for what outlives a reboot")
	cmd.PersistentFlags().StringVar(&state, "state", "/run/coracle", "directory for what a reboot may lose")
	list := &cobra.Command{
		Use: "list", Short: "list certificates", Example: "  coracle-kube certificate list", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := credentialsOf(root)
			if err != nil {
				return err
			}
			all, err := pki.List(dir)
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(append([]pki.Certificate{}, all...))
		},
	}
	var what pki.What
	var wait time.Duration
	rotate := &cobra.Command{
		Use: "rotate", Short: "replace credentials", Example: "  coracle-kube certificate rotate --certificates", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := credentialsOf(root)
			if err != nil {
				return err
			}
			if dir == credentialsDir(root) {
				return errors.New("this machine is a node of a cluster elsewhere, which signs its certificates: leave and join again for others")
			}
			peers, err := etcd.ReadPeers(root)
			if err != nil {
				return err
			}
			if peers != nil && what.ServiceAccountKey {
				return errors.New("several control-plane nodes have the key of service account tokens: it can be replaced only while there is one")
			}
			if peers != nil && (what.Authority || what.DropFormer) {
				return errors.New("several control-plane nodes have the key of the authority: run 'coracle leave' on all others, and join them again " +
					"when the authority is replaced")
			}
			r := rotation{dir: dir, socket: filepath.Join(state, "kube", profileSocket)}
			var answer rotated
			switch {
			case what.DropFormer:
				answer, err = r.finish(cmd.Context())
			case what.Authority:
				answer, err = r.replaceAuthority(cmd.Context(), wait)
			default:
				answer, err = r.rotate(cmd.Context(), what)
			}
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(answer)
		},
	}
	rotate.Flags().BoolVar(&what.Certificates, "certificates", false, "replace all certificates but the authorities'")
	rotate.Flags().BoolVar(&what.ServiceAccountKey, "service-account-key", false, "replace the key that signs service account tokens")
	rotate.Flags().BoolVar(&what.Authority, "authority", false, "replace the authorities, and wait until all nodes follow")
	rotate.Flags().BoolVar(&what.DropFormer, "finish", false, "end the trust in the authorities that were replaced")
	rotate.Flags().DurationVar(&wait, "timeout", time.Minute, "how long nodes are waited for")
	rotate.MarkFlagsOneRequired("certificates", "service-account-key", "authority", "finish")
	rotate.MarkFlagsMutuallyExclusive("certificates", "service-account-key", "authority", "finish")
	cmd.AddCommand(list, rotate)
	return cmd
}

// credentialsOf is the directory with this machine's certificates, as the first machine of a
// cluster or as a node.
func credentialsOf(root string) (string, error) {
	for _, dir := range []string{filepath.Join(root, "pki"), credentialsDir(root)} {
		if _, err := os.Stat(dir); err == nil {
			return dir, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", errors.New("this machine has no cluster, and has joined none")
}

// renewNow has the cluster process make its credentials good, and says whether it runs.
func renewNow(ctx context.Context, socket string) (running bool, err error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://kube"+renewPath, nil)
	if err != nil {
		return false, err
	}
	resp, err := transport.RoundTrip(req)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		said, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		return true, errors.Join(errors.New(strings.TrimSpace(string(said))), err)
	}
	return true, nil
}
