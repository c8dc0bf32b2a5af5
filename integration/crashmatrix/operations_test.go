package crashmatrix

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
	"github.com/coracle-project/coracle/internal/testkit"
)

// nodeKind is how a node connects its pods.
type nodeKind string

const (
	builtIn nodeKind = "built-in"
	onCNI   nodeKind = "CNI"
)

// stage is the state of a workload before the operation.
type stage int

const (
	nothing stage = iota
	podRuns
	created
	started
	running // and has written lines
	stopped
)

// operation is a request of a client.
type operation struct {
	name string
	node nodeKind // builtIn if empty
	// pod and container change the workload's configuration; its stage before the operation is
	// from.
	pod       func(*cri.PodSandboxConfig)
	container func(*cri.ContainerConfig)
	from      stage
	// kills means that the container is not asked to end.
	kills bool
	// prepare makes what else must exist first.
	prepare func(*cell) error
	// do is one try. It is repeated until it succeeds.
	do func(*cell) error
	// done checks the result, and removes what prepare and do made. The end of the workload is
	// checked for all operations.
	done func(*cell) error
	// own means that its points differ from those of other operations: here they are of the pod's
	// init.
	own bool
	// skip returns why the operation cannot run here.
	skip func() string
}

// operations are all requests of a client that change something.
var operations = []operation{
	{name: "pull", prepare: (*cell).withoutWeb, do: func(c *cell) error { return c.pullOnce("web") }, done: (*cell).webIsWhole},
	{name: "run pod", do: onWorkload((*workload).run)},
	{name: "run pod, port mapping", pod: mapPort, do: onWorkload((*workload).run)},
	{name: "run pod, user namespace", pod: ownUsers, do: onWorkload((*workload).run)},
	{name: "run pod, CNI", node: onCNI, do: onWorkload((*workload).run)},
	{name: "create", from: podRuns, do: onWorkload((*workload).create)},
	{name: "create, image volume", from: podRuns, container: imageVolume, do: onWorkload((*workload).create)},
	{name: "create, shared PID namespace", from: podRuns, pod: sharedPID, container: sharesPID, own: true, do: onWorkload((*workload).create)},
	{name: "start", from: created, do: onWorkload((*workload).start)},
	{name: "start, shared PID namespace", from: created, pod: sharedPID, container: sharesPID, do: onWorkload((*workload).start)},
	{name: "start, user namespace", from: created, pod: ownUsers, do: onWorkload((*workload).start)},
	{name: "exec", from: running, do: func(c *cell) error { return c.w.exec("echo out; exit 3", "out\n", 3) }},
	{name: "update", from: running, do: (*cell).update, done: (*cell).updated},
	{name: "log rotation", from: running, do: (*cell).burst},
	{name: "log reopened", from: running, prepare: (*cell).renameLog, do: (*cell).reopenLog},
	{name: "stop container", from: running, do: onWorkload((*workload).stop)},
	{name: "remove container", from: stopped, do: onWorkload((*workload).removeContainer)},
	{name: "remove container, image volume", from: running, container: imageVolume, kills: true, do: onWorkload((*workload).removeContainer)},
	{name: "stop pod", from: running, kills: true, do: onWorkload((*workload).stopPod)},
	{name: "stop pod, port mapping", from: running, pod: mapPort, kills: true, do: onWorkload((*workload).stopPod)},
	{name: "stop pod, CNI", node: onCNI, from: running, kills: true, do: onWorkload((*workload).stopPod)},
	{name: "remove pod", from: stopped, do: onWorkload((*workload).removePod)},
	{
		name: "remove pod, running, shared PID namespace", from: running, pod: sharedPID, container: sharesPID, kills: true,
		do: onWorkload((*workload).removePod),
	},
	{name: "checkpoint", from: running, do: (*cell).checkpoint, done: (*cell).checkpointed, skip: testkit.NoCRIU},
	{name: "remove image", prepare: func(c *cell) error {
		return c.n.pull(testRef("web"))
	}, do: func(c *cell) error { return c.removeOnce("web") }, done: (*cell).withoutWeb},
	{name: "import", do: func(c *cell) error { return c.importOnce("1") }, done: (*cell).removeMade},
	{name: "verify", prepare: (*cell).damaged, do: (*cell).verify, done: (*cell).removeMade},
	{name: "tag", prepare: func(c *cell) error { return c.importMade("1") }, do: (*cell).tag, done: (*cell).removeMade},
	{name: "prune", prepare: func(c *cell) error { return c.importMade("1") }, do: (*cell).prune, done: (*cell).pruned},
}

func onWorkload(f func(*workload) error) func(*cell) error {
	return func(c *cell) error { return f(c.w) }
}

func mapPort(c *cri.PodSandboxConfig) {
	c.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 80, HostPort: 18080}}
}

func ownUsers(c *cri.PodSandboxConfig) {
	ids := []*cri.IDMapping{{ContainerId: 0, HostId: 1 << 17, Length: 1 << 16}}
	c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}
}

func sharedPID(c *cri.PodSandboxConfig) {
	c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
}

func sharesPID(c *cri.ContainerConfig) {
	c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
}

func imageVolume(c *cri.ContainerConfig) {
	c.Mounts = []*cri.Mount{{ContainerPath: "/image", Image: &cri.ImageSpec{Image: testRef("busybox")}}}
}

func (c *cell) pullOnce(name string) error {
	_, err := call(c.n.Images.PullImage, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: testRef(name)}})
	return err
}

func (c *cell) removeOnce(name string) error {
	_, err := call(c.n.Images.RemoveImage, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: testRef(name)}})
	return err
}

func (c *cell) withoutWeb() error { return c.n.removeImage(testRef("web")) }

// webIsWhole reads the whole image again.
func (c *cell) webIsWhole() error {
	has, err := c.n.hasImage(testRef("web"))
	if err == nil && !has {
		err = lost("the image is not there")
	}
	if err == nil {
		err = c.verifyImages(imagesv1.Repair_REPAIR_NONE, testRef("web"))
	}
	return errors.Join(err, c.withoutWeb())
}

const memoryLimit = 64 << 20

func (c *cell) update() error {
	_, err := call(c.n.UpdateContainerResources, &cri.UpdateContainerResourcesRequest{
		ContainerId: c.w.id, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: memoryLimit},
	})
	return err
}

func (c *cell) updated() error {
	s, err := c.w.status()
	if got := s.GetResources().GetLinux().GetMemoryLimitInBytes(); err == nil && got != memoryLimit {
		return lost("the memory limit is %d", got)
	}
	return err
}

// burst makes the container write more than its log may hold.
func (c *cell) burst() error {
	files, err := c.w.logs()
	if err != nil || len(files) > 1 {
		return err
	}
	if err := c.w.exec("touch /burst", "", 0); err != nil {
		return err
	}
	return until("the log is rotated", func() bool {
		files, err := c.w.logs()
		return err == nil && len(files) > 1
	})
}

// renameLog does what the kubelet does before it asks to reopen the log.
func (c *cell) renameLog() error {
	path := filepath.Join(c.w.pod.LogDirectory, c.w.conf.LogPath)
	return os.Rename(path, path+".20060102-150405")
}

func (c *cell) reopenLog() error {
	_, err := call(c.n.ReopenContainerLog, &cri.ReopenContainerLogRequest{ContainerId: c.w.id})
	return err
}

func (c *cell) archive() string { return filepath.Join(c.w.pod.LogDirectory, "saved.tar") }

func (c *cell) checkpoint() error {
	_, err := call(c.n.CheckpointContainer, &cri.CheckpointContainerRequest{ContainerId: c.w.id, Location: c.archive()})
	return err
}

func (c *cell) checkpointed() error {
	entries, err := os.ReadDir(c.w.pod.LogDirectory)
	if slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), ".coracle-checkpoint") }) {
		return lost("parts of a checkpoint are left")
	}
	return errors.Join(err, os.Remove(c.archive()))
}

const madeName = "localhost/made:"

// importOnce makes an image from an archive with one file.
func (c *cell) importOnce(tag string) error {
	ctx, cancel := callContext()
	defer cancel()
	s, err := c.n.made.Import(ctx)
	if err != nil {
		return err
	}
	// The end of the call reports the failure, not Send.
	_ = s.Send(&imagesv1.ImportRequest{Name: madeName + tag, Data: oneFile()})
	r, err := s.CloseAndRecv()
	if err == nil {
		c.diffID = r.GetImage().GetLayers()[0].GetDiffId()
	}
	return err
}

func (c *cell) importMade(tag string) error {
	return through("Import", func() error { return c.importOnce(tag) })
}

// removeMade also removes an image that lost its name to a second try, and damaged layers that were
// set aside for the operator.
func (c *cell) removeMade() error {
	aside, err := filepath.Glob(filepath.Join(c.n.Root, "snapshots", "quarantine", "*"))
	for _, dir := range aside {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return errors.Join(err, c.n.removeImage(madeName+"1"), c.n.removeImage(madeName+"2"), through("Prune", func() error {
		_, err := call(c.n.made.Prune, &imagesv1.PruneRequest{})
		return err
	}))
}

// damaged imports an image and changes its file.
func (c *cell) damaged() error {
	if err := c.importMade("1"); err != nil {
		return err
	}
	file := filepath.Join(c.n.Root, "snapshots", "layers", "sha256", strings.TrimPrefix(c.diffID, "sha256:"), "fs", "file")
	return os.WriteFile(file, []byte("damaged"), 0o644)
}

func (c *cell) verify() error {
	return c.verifyImages(imagesv1.Repair_REPAIR_DROP, madeName+"1")
}

// verifyImages fails if the images are damaged and cannot be repaired.
func (c *cell) verifyImages(r imagesv1.Repair, names ...string) error {
	ctx, cancel := callContext()
	defer cancel()
	s, err := c.n.made.Verify(ctx, &imagesv1.VerifyRequest{Repair: r, Images: names})
	var result *imagesv1.VerifyResult
	for err == nil {
		var m *imagesv1.VerifyResponse
		if m, err = s.Recv(); m.GetResult() != nil {
			result = m.GetResult()
		}
	}
	if !errors.Is(err, io.EOF) {
		// An earlier try dropped it, and its answer was lost.
		if has, herr := c.n.hasImage(names[0]); r == imagesv1.Repair_REPAIR_DROP && herr == nil && !has {
			return nil
		}
		return err
	}
	if r == imagesv1.Repair_REPAIR_NONE && len(result.GetDamaged()) > 0 {
		return lost("damaged: %v", result.GetDamaged())
	}
	if has, err := c.n.hasImage(names[0]); r == imagesv1.Repair_REPAIR_DROP && err == nil && has {
		return lost("the damaged image is still there")
	}
	return nil
}

func (c *cell) tag() error {
	_, err := call(c.n.made.Tag, &imagesv1.TagRequest{Image: madeName + "1", Name: madeName + "2"})
	return err
}

func (c *cell) prune() error {
	_, err := call(c.n.made.Prune, &imagesv1.PruneRequest{All: true})
	return err
}

func (c *cell) pruned() error {
	has, err := c.n.hasImage(madeName + "1")
	if err == nil && has {
		err = lost("the image was not pruned")
	}
	// Without a container that uses it, the other image goes too.
	return errors.Join(err, c.removeMade(), c.n.pull(testRef("busybox")))
}

// oneFile returns an archive of a root file system.
func oneFile() []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Size: 4, Mode: 0o644})
	_, _ = w.Write([]byte("good"))
	_ = w.Close()
	return b.Bytes()
}
