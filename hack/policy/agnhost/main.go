// Command agnhost is Kubernetes' program of test images, with only the commands that tests of
// network policies use. Its SCTP, of kernels without SCTP sockets, is one packet and its answer:
// see sctp.go.
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/kubernetes/test/images/agnhost/connect"
	"k8s.io/kubernetes/test/images/agnhost/netexec"
	"k8s.io/kubernetes/test/images/agnhost/pause"
	"k8s.io/kubernetes/test/images/agnhost/porter"
	servehostname "k8s.io/kubernetes/test/images/agnhost/serve-hostname"
)

func main() {
	if !hasSCTP() {
		withoutSockets(connect.CmdConnect, porter.CmdPorter)
	}
	root := &cobra.Command{Use: "agnhost"}
	root.AddCommand(connect.CmdConnect, netexec.CmdNetexec, pause.CmdPause, porter.CmdPorter, servehostname.CmdServeHostname)
	if root.Execute() != nil {
		os.Exit(1)
	}
}

// withoutSockets has commands speak SCTP as sctp.go does.
func withoutSockets(client, server *cobra.Command) {
	others := client.Run
	client.Run = func(cmd *cobra.Command, args []string) {
		if cmd.Flag("protocol").Value.String() != "sctp" {
			others(cmd, args)
			return
		}
		timeout, err := time.ParseDuration(cmd.Flag("timeout").Value.String())
		if err == nil {
			err = ask(args[0], timeout)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	serve := server.Run
	server.Run = func(cmd *cobra.Command, args []string) {
		const prefix = "SERVE_SCTP_PORT_"
		for _, v := range os.Environ() {
			if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, prefix) {
				if err := os.Unsetenv(name); err != nil {
					panic(err)
				}
				if err := answer(strings.TrimPrefix(name, prefix)); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
			}
		}
		serve(cmd, args)
	}
}
