// Package client makes calls of CSI drivers on this node. Drivers may be hostile: the time of a
// call, the size of an answer and the length of an error message have limits.
package client

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
	// CallTimeout bounds each call, as upstream's does.
	CallTimeout = 2 * time.Minute
	// MostAnswer bounds one answer, mostHeader its status and metadata.
	MostAnswer = 1 << 20
	mostHeader = 64 << 10
	// mostMessage is how much of a driver's message is passed on.
	mostMessage = 1024
	// longestName is the API's limit for drivers' names.
	longestName = 63
)

// DevicesDir is the directory of block volumes, next to those of the drivers. So no driver may have
// this name.
const DevicesDir = "volumeDevices"

// Driver is how a driver is reached, and what it has said of this node. It does not change once it
// is registered.
type Driver struct {
	Name string
	// Endpoint is the path of its socket on this node.
	Endpoint string
	// Here is the kubelet's directory, There the same directory as the driver sees it.
	Here, There string
	// NodeID is the driver's name for this node, Limit the number of volumes that the node can have,
	// 0 for any. Topology says where the node is.
	NodeID   string
	Limit    int64
	Topology map[string]string
}

// CheckName refuses what is no driver's name by the API's rules, or has another meaning as
// the name of a directory.
func CheckName(name string) error {
	if len(name) > longestName {
		return fmt.Errorf("driver name %.80q has more than %d characters", name, longestName)
	}
	if problems := validation.IsDNS1123Subdomain(strings.ToLower(name)); len(problems) > 0 {
		return fmt.Errorf("driver name %q: %s", name, strings.Join(problems, ", "))
	}
	if name == DevicesDir {
		return fmt.Errorf("driver name %q is reserved for the directory of block volumes", name)
	}
	return nil
}

// Seen returns a path below the kubelet's directory as the driver sees it.
func (d *Driver) Seen(path string) string {
	if rest, ok := strings.CutPrefix(path, d.Here+"/"); ok {
		return d.There + "/" + rest
	}
	return path
}

// Session is a connection to a driver, for one operation: between operations there is none.
type Session struct {
	*Driver
	Node csipb.NodeClient
	// Can has the driver's capabilities. It is empty after Connect.
	Can  map[csipb.NodeServiceCapability_RPC_Type]bool
	conn *grpc.ClientConn
	life context.Context // see Outlive
}

// Connect connects to the driver, for calls that need none of its capabilities. The connection is
// made at the first call.
func (d *Driver) Connect() (*Session, error) {
	conn, err := Dial(d.Endpoint)
	if err != nil {
		return nil, err
	}
	return &Session{Driver: d, Node: csipb.NewNodeClient(conn), conn: conn}, nil
}

// Open connects to the driver and asks what it is capable of.
func (d *Driver) Open(ctx context.Context) (*Session, error) {
	s, err := d.Connect()
	if err != nil {
		return nil, err
	}
	s.Can = map[csipb.NodeServiceCapability_RPC_Type]bool{}
	err = s.Call(ctx, "NodeGetCapabilities", func(ctx context.Context) error {
		answer, err := s.Node.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
		for _, c := range answer.GetCapabilities() {
			s.Can[c.GetRpc().GetType()] = true
		}
		return err
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Ask has the driver say what it knows of this node, and sets NodeID, Limit and Topology.
func (d *Driver) Ask(ctx context.Context) error {
	s, err := d.Connect()
	if err != nil {
		return err
	}
	defer s.Close()
	var answer *csipb.NodeGetInfoResponse
	err = s.Call(ctx, "NodeGetInfo", func(ctx context.Context) (err error) {
		answer, err = s.Node.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
		return err
	})
	if err != nil {
		return err
	}
	if answer.GetNodeId() == "" {
		return fmt.Errorf("CSI driver %s has no name for this node: NodeGetInfo answers without node_id", d.Name)
	}
	d.NodeID, d.Limit, d.Topology = answer.GetNodeId(), answer.GetMaxVolumesPerNode(), answer.GetAccessibleTopology().GetSegments()
	return nil
}

// Close ends the connection.
func (s *Session) Close() { s.conn.Close() }

// Outlive has calls go on when their context ends, until life does.
func (s *Session) Outlive(life context.Context) { s.life = life }

// Call makes one call within its deadline.
func (s *Session) Call(ctx context.Context, name string, f func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.life != nil {
		ctx = s.life
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	if err := f(ctx); err != nil {
		return &callError{driver: s.Name, call: name, err: err}
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
	return fmt.Sprintf("%s of CSI driver %s: rpc error: code = %s desc = %s", e.call, e.driver, s.Code(), Shorten(s.Message()))
}

// Shorten returns as much of a driver's message as is passed on.
func Shorten(message string) string {
	if len(message) > mostMessage {
		return strings.ToValidUTF8(message[:mostMessage], "") + "..."
	}
	return message
}

func (e *callError) Unwrap() error { return e.err }

func (e *callError) code() codes.Code { return status.Code(e.err) }

// CodeOf returns what a driver has answered, codes.Unknown for other errors.
func CodeOf(err error) codes.Code {
	if e, ok := errors.AsType[*callError](err); ok {
		return e.code()
	}
	return codes.Unknown
}

// Final says whether a call that ended with this code is over in the driver, too. The codes are
// upstream's.
func Final(code codes.Code) bool {
	switch code {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true
}

// Dial returns a connection to a socket. It is made at the first call.
func Dial(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///plugin",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return connect(ctx, path) }),
		grpc.WithAuthority("localhost"),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithMaxHeaderListSize(mostHeader),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MostAnswer)))
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
