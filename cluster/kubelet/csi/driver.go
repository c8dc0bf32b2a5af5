package csi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// callTimeout bounds each call, as upstream's does.
	callTimeout = 2 * time.Minute
	// mostAnswer bounds one answer, mostHeader its status and metadata.
	mostAnswer = 1 << 20
	mostHeader = 64 << 10
	// mostMessage is how much of a driver's error message is passed on.
	mostMessage = 1024
	// longestName is the API's limit for drivers' names.
	longestName = 63
)

// kubeletDir is where drivers expect the kubelet's directory.
const kubeletDir = "/var/lib/kubelet"

// errUnknown is of a driver that is not registered.
type errUnknown string

func (e errUnknown) Error() string {
	return fmt.Sprintf(
		"driver name %s not found in the list of registered CSI drivers: run the driver on this node, or wait until it has started", string(e),
	)
}

// driver is one registration of a driver. It does not change.
type driver struct {
	name string
	// endpoint is the path of its socket on this node.
	endpoint string
	// root is the kubelet's directory as the driver sees it.
	root string
	// from is the registrar's socket.
	from *socket
	// nodeID and the rest are what it has said of this node.
	nodeID   string
	limit    int64
	topology map[string]string
}

// checkDriverName refuses what is no driver's name by the API's rules, or has another meaning as
// the name of a directory.
func checkDriverName(name string) error {
	if len(name) > longestName {
		return fmt.Errorf("driver name %.80q has more than %d characters", name, longestName)
	}
	if problems := validation.IsDNS1123Subdomain(strings.ToLower(name)); len(problems) > 0 {
		return fmt.Errorf("driver name %q: %s", name, strings.Join(problems, ", "))
	}
	if name == devicesDir {
		return fmt.Errorf("driver name %q is reserved for the directory of block volumes", name)
	}
	return nil
}

// driver returns the driver of that name, or errUnknown.
func (n *Node) driver(name string) (*driver, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.drivers[name]
	if len(all) == 0 {
		return nil, errUnknown(name)
	}
	return all[len(all)-1], nil
}

// driverFor returns the driver, or has the pod woken when it registers.
func (n *Node) driverFor(name string, user user) (*driver, error) {
	n.wait(driverKey(name), user) // first: a driver that comes after the look wakes the pod
	d, err := n.driver(name)
	if err == nil {
		n.waitNoMore(driverKey(name), user)
	}
	return d, err
}

func driverKey(name string) string { return "driver/" + name }

// seen returns a path below the kubelet's directory as the driver sees it.
func (n *Node) seen(d *driver, path string) string {
	if rest, ok := strings.CutPrefix(path, n.opts.RootDir+"/"); ok {
		return d.root + "/" + rest
	}
	return path
}

// session is a connection to a driver, for one operation: between operations there is none.
type session struct {
	*driver
	conn *grpc.ClientConn
	node csipb.NodeClient
	has  map[csipb.NodeServiceCapability_RPC_Type]bool
}

// open connects to the driver and asks what it is capable of.
func (d *driver) open(ctx context.Context) (*session, error) {
	conn, err := dial(d.endpoint)
	if err != nil {
		return nil, err
	}
	s := &session{driver: d, conn: conn, node: csipb.NewNodeClient(conn), has: map[csipb.NodeServiceCapability_RPC_Type]bool{}}
	err = s.call(ctx, "NodeGetCapabilities", func(ctx context.Context) error {
		answer, err := s.node.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
		for _, c := range answer.GetCapabilities() {
			s.has[c.GetRpc().GetType()] = true
		}
		return err
	})
	if err != nil {
		conn.Close()
		return nil, err
	}
	return s, nil
}

func (s *session) close() { s.conn.Close() }

// call makes one call within its deadline.
func (s *session) call(ctx context.Context, name string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := f(ctx); err != nil {
		return &callError{driver: s.name, call: name, err: err}
	}
	return nil
}

// callError is a driver's refusal, or that it did not answer.
type callError struct {
	driver, call string
	err          error
}

func (e *callError) Error() string {
	s := status.Convert(e.err)
	message := s.Message()
	if len(message) > mostMessage {
		message = strings.ToValidUTF8(message[:mostMessage], "") + "..."
	}
	return fmt.Sprintf("%s of CSI driver %s: rpc error: code = %s desc = %s", e.call, e.driver, s.Code(), message)
}

func (e *callError) Unwrap() error { return e.err }

func (e *callError) code() codes.Code { return status.Code(e.err) }

// codeOf returns what a driver has answered, codes.Unknown for other errors.
func codeOf(err error) codes.Code {
	if e, ok := errors.AsType[*callError](err); ok {
		return e.code()
	}
	return codes.Unknown
}

// final says whether a call that ended with this code is over in the driver, too. The codes are
// upstream's.
func final(code codes.Code) bool {
	switch code {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true
}

// dial returns a connection to a socket. It is made at the first call.
func dial(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///plugin",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return connect(ctx, path) }),
		grpc.WithAuthority("localhost"),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithMaxHeaderListSize(mostHeader),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostAnswer)))
}

// connect connects to a socket. Its address may be too long for the kernel, but not its name.
func connect(ctx context.Context, path string) (net.Conn, error) {
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer unix.Close(dir)
	var d net.Dialer
	return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(path)))
}
