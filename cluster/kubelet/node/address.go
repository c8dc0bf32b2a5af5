package node

import (
	"context"
	"fmt"
	"net"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Ref names a node in events, with its name for a UID, as upstream does.
func Ref(name string) *v1.ObjectReference {
	return &v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: types.UID(name)}
}

// lookup bounds how long a node's start waits for name servers. Where none answers, Go's resolver
// would try each for 10 s.
const lookup = time.Second

// Address returns the node's address: the one that its name resolves to if that is of an interface
// of this machine, or else that of the interface with the default route.
func Address(name string) (string, error) {
	if ip := net.ParseIP(name); ip != nil {
		return ip.String(), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookup)
	defer cancel()
	resolved, _ := net.DefaultResolver.LookupIP(ctx, "ip4", name)
	own, _ := net.InterfaceAddrs()
	for _, ip := range resolved {
		if ip.IsLoopback() {
			continue
		}
		for _, a := range own {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
				return ip.String(), nil
			}
		}
	}
	ip, err := utilnet.ChooseHostInterface()
	if err != nil {
		return "", fmt.Errorf("can't get ip address of node %s: %w; give the node's address explicitly", name, err)
	}
	return ip.String(), nil
}
