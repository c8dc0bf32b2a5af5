package show

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/lazy/toc"
)

// ErrUnsupported is a kernel that cannot do what is needed.
var ErrUnsupported = errors.New("lazy layers need FUSE of Linux 6.12: idmapped mounts, and requests that can be asked for again")

// needed is what the kernel has to offer. Without idmapped mounts (Linux 6.12) no pod with a user
// namespace could be made while a lazy layer is mounted; without FUSE_HAS_RESEND (6.9) what was
// asked of a process that is killed would never be answered.
const needed = fuse.CAP_ALLOW_IDMAP | fuse.CAP_HAS_RESEND

// Greeting is what the kernel said when a connection was made, which it says once.
type Greeting []byte

// Mount mounts a connection at dir; nothing is answered yet.
func Mount(dir string) (*os.File, error) {
	conn, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0,default_permissions,allow_other,max_read=%d", conn.Fd(), unix.S_IFDIR,
		maxRead)
	if err := unix.Mount("coracle-lazy", dir, "fuse.coracle-lazy", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return nil, errors.Join(fmt.Errorf("mount %s: %w", dir, err), conn.Close())
	}
	return conn, nil
}

const maxRead = 128 << 10

// Server answers for one mount.
type Server struct {
	server *fuse.Server
	ended  chan struct{}
}

// Begin greets the kernel on a new connection, which stays the caller's. Nothing else is answered
// before Serve.
func Begin(conn *os.File, tree *toc.Tree, contents Contents) (*Server, Greeting, error) {
	fd, err := unix.FcntlInt(conn.Fd(), unix.F_DUPFD_CLOEXEC, 4)
	if err != nil {
		return nil, nil, fmt.Errorf("duplicate connection: %w", err)
	}
	s, err := begin(fd, tree, contents)
	if err != nil {
		return nil, nil, err
	}
	in := s.KernelSettings()
	if in.Flags64()&needed != needed {
		go s.Serve() // until the caller has unmounted it, so that no one waits; it closes the descriptor
		return nil, nil, ErrUnsupported
	}
	var greeting bytes.Buffer
	in.Length = uint32(binary.Size(in))
	if err := binary.Write(&greeting, binary.NativeEndian, in); err != nil {
		return nil, nil, fmt.Errorf("write down the kernel's greeting: %w", err)
	}
	return &Server{server: s, ended: make(chan struct{})}, greeting.Bytes(), nil
}

// Resume takes over a connection that another process has greeted. The library expects a greeting
// first: it gets the old one over a socket, which the connection then takes the place of.
func Resume(conn *os.File, greeting Greeting, tree *toc.Tree, contents Contents) (*Server, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("take over a connection: %w", err)
	}
	defer unix.Close(pair[1])
	if _, err := unix.Write(pair[1], greeting); err != nil {
		return nil, errors.Join(fmt.Errorf("take over a connection: %w", err), unix.Close(pair[0]))
	}
	s, err := begin(pair[0], tree, contents)
	if err != nil {
		return nil, err
	}
	if err := unix.Dup3(int(conn.Fd()), pair[0], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("take over a connection: %w", err)
	}
	if err := resend(conn); err != nil {
		return nil, err
	}
	return &Server{server: s, ended: make(chan struct{})}, nil
}

// resend has the kernel ask again what the process before was asked and had not answered.
func resend(conn *os.File) error {
	header := binary.NativeEndian.AppendUint32(nil, 16)
	header = binary.NativeEndian.AppendUint32(header, 7) // FUSE_NOTIFY_RESEND
	header = binary.NativeEndian.AppendUint64(header, 0) // no answer to anything
	if _, err := unix.Write(int(conn.Fd()), header); err != nil {
		return fmt.Errorf("ask for requests again: %w", err)
	}
	return nil
}

func begin(fd int, tree *toc.Tree, contents Contents) (*fuse.Server, error) {
	s, err := fuse.NewServer(&files{fuse.NewDefaultRawFileSystem(), tree, contents}, "/dev/fd/"+strconv.Itoa(fd), &fuse.MountOptions{
		MaxWrite:             maxRead,
		MaxBackground:        64,
		IDMappedMount:        true,
		DisableSplice:        true,
		EnableSymlinkCaching: true,
		// The data does not change, so that nothing has to be thrown away for a time that does.
		ExplicitDataCacheControl: true,
		Logger:                   log.New(os.Stderr, "", 0),
	})
	if err != nil {
		return nil, fmt.Errorf("greet the kernel: %w", err)
	}
	return s, nil
}

// Serve answers until the file system is gone: no one has it mounted any more.
func (s *Server) Serve() {
	defer close(s.ended)
	s.server.Serve()
}

// Ended is closed when Serve has ended.
func (s *Server) Ended() <-chan struct{} { return s.ended }
