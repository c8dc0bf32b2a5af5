package pod

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

func TestBadPods(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	for name, tc := range map[string]struct {
		change func(c *podconfig.Pod)
		kind   error
	}{
		"no name":         {func(c *podconfig.Pod) { c.Name = "" }, errdefs.ErrInvalid},
		"no namespace":    {func(c *podconfig.Pod) { c.Namespace = "" }, errdefs.ErrInvalid},
		"no uid":          {func(c *podconfig.Pod) { c.UID = "" }, errdefs.ErrInvalid},
		"slash in name":   {func(c *podconfig.Pod) { c.Name = "a/b" }, errdefs.ErrInvalid},
		"newline in uid":  {func(c *podconfig.Pod) { c.UID = "a\nb" }, errdefs.ErrInvalid},
		"long name":       {func(c *podconfig.Pod) { c.Name = strings.Repeat("x", 300) }, errdefs.ErrInvalid},
		"hostname":        {func(c *podconfig.Pod) { c.Hostname = "a b" }, errdefs.ErrInvalid},
		"hostname lines":  {func(c *podconfig.Pod) { c.Hostname = "a\n10.0.0.1\tregistry.example" }, errdefs.ErrInvalid},
		"hostname ends":   {func(c *podconfig.Pod) { c.Hostname = "a\n" }, errdefs.ErrInvalid},
		"hostname tab":    {func(c *podconfig.Pod) { c.Hostname = "a\tb" }, errdefs.ErrInvalid},
		"hostname NUL":    {func(c *podconfig.Pod) { c.Hostname = "a\x00b" }, errdefs.ErrInvalid},
		"hostname escape": {func(c *podconfig.Pod) { c.Hostname = "a\x1b[2J" }, errdefs.ErrInvalid},
		"hostname remark": {func(c *podconfig.Pod) { c.Hostname = "#a" }, errdefs.ErrInvalid},
		"hostname blank":  {func(c *podconfig.Pod) { c.Hostname = "a\u00a0b" }, errdefs.ErrInvalid},
		"long hostname":   {func(c *podconfig.Pod) { c.Hostname = strings.Repeat("x", 65) }, errdefs.ErrInvalid},
		"log directory":   {func(c *podconfig.Pod) { c.LogDirectory = "logs" }, errdefs.ErrInvalid},
		"runtime handler": {func(c *podconfig.Pod) { c.RuntimeHandler = "kata" }, errdefs.ErrInvalid},
		"dns server":      {func(c *podconfig.Pod) { c.DNS.Servers = []string{"dns.example"} }, errdefs.ErrInvalid},
		"dns search":      {func(c *podconfig.Pod) { c.DNS.Searches = []string{"a\nnameserver 1.1.1.1"} }, errdefs.ErrInvalid},
		"dns option":      {func(c *podconfig.Pod) { c.DNS.Options = []string{""} }, errdefs.ErrInvalid},
		"protocol":        {func(c *podconfig.Pod) { c.Ports = []podconfig.Port{{Protocol: "icmp", ContainerPort: 1}} }, errdefs.ErrInvalid},
		"container port":  {func(c *podconfig.Pod) { c.Ports = []podconfig.Port{{ContainerPort: 70000}} }, errdefs.ErrInvalid},
		"no port":         {func(c *podconfig.Pod) { c.Ports = []podconfig.Port{{HostPort: 80}} }, errdefs.ErrInvalid},
		"host port":       {func(c *podconfig.Pod) { c.Ports = []podconfig.Port{{ContainerPort: 1, HostPort: -1}} }, errdefs.ErrInvalid},
		"host ip":         {func(c *podconfig.Pod) { c.Ports = []podconfig.Port{{ContainerPort: 1, HostIP: "x"}} }, errdefs.ErrInvalid},
		"host port twice": {func(c *podconfig.Pod) {
			c.Ports = []podconfig.Port{{ContainerPort: 1, HostPort: 8}, {ContainerPort: 2, HostPort: 8}}
		}, errdefs.ErrInvalid},
		"sysctl name":   {func(c *podconfig.Pod) { c.Sysctls = map[string]string{"net..x": "1"} }, errdefs.ErrInvalid},
		"sysctl escape": {func(c *podconfig.Pod) { c.Sysctls = map[string]string{"net/../kernel/panic": "1"} }, errdefs.ErrInvalid},
		"host sysctl":   {func(c *podconfig.Pod) { c.Sysctls = map[string]string{"kernel.panic": "1"} }, errdefs.ErrInvalid},
		"host net sysctl": {func(c *podconfig.Pod) {
			c.Sysctls, c.Namespaces.Network = map[string]string{"net.core.somaxconn": "1"}, podconfig.NamespaceNode
		}, errdefs.ErrInvalid},
		"host ipc sysctl": {func(c *podconfig.Pod) {
			c.Sysctls, c.Namespaces.IPC = map[string]string{"kernel.shmmax": "1"}, podconfig.NamespaceNode
		}, errdefs.ErrInvalid},
		"cgroup parent":               {func(c *podconfig.Pod) { c.CgroupParent = "/a/../../b" }, errdefs.ErrInvalid},
		"cgroup as scope":             {func(c *podconfig.Pod) { c.CgroupParent = "a.slice:b:c" }, errdefs.ErrInvalid},
		"network mode":                {func(c *podconfig.Pod) { c.Namespaces.Network = podconfig.NamespaceTarget }, errdefs.ErrInvalid},
		"ipc mode":                    {func(c *podconfig.Pod) { c.Namespaces.IPC = podconfig.NamespaceContainer }, errdefs.ErrInvalid},
		"pid mode":                    {func(c *podconfig.Pod) { c.Namespaces.PID = podconfig.NamespaceTarget }, errdefs.ErrInvalid},
		"user namespace without ids":  {func(c *podconfig.Pod) { c.Namespaces.User = podconfig.NamespacePod }, errdefs.ErrInvalid},
		"user namespace of container": {func(c *podconfig.Pod) { c.Namespaces.User = podconfig.NamespaceContainer }, errdefs.ErrInvalid},
		"ids without user namespace":  {func(c *podconfig.Pod) { c.Namespaces.Users = someUsers(0, 1000) }, errdefs.ErrInvalid},
		"ids of two ranges": {func(c *podconfig.Pod) {
			c.Namespaces.User, c.Namespaces.Users = podconfig.NamespacePod, someUsers(0, 1000)
			c.Namespaces.Users.UIDs = append(c.Namespaces.Users.UIDs, podconfig.IDMap{Container: 70000, Host: 1, Length: 1})
		}, errdefs.ErrInvalid},
		"other ids for groups": {func(c *podconfig.Pod) {
			c.Namespaces.User, c.Namespaces.Users = podconfig.NamespacePod, someUsers(0, 1000)
			c.Namespaces.Users.GIDs = someUsers(0, 2000).GIDs
		}, errdefs.ErrInvalid},
		"ids without root": {func(c *podconfig.Pod) {
			c.Namespaces.User, c.Namespaces.Users = podconfig.NamespacePod, someUsers(1, 1000)
		}, errdefs.ErrInvalid},
		"ids beyond the last": {func(c *podconfig.Pod) {
			c.Namespaces.User, c.Namespaces.Users = podconfig.NamespacePod, someUsers(0, 1<<32-100)
		}, errdefs.ErrInvalid},
		"user namespace and the host's network": {func(c *podconfig.Pod) {
			c.Namespaces.User, c.Namespaces.Users, c.Namespaces.Network = podconfig.NamespacePod, someUsers(0, 1000), podconfig.NamespaceNode
		}, errdefs.ErrInvalid},
	} {
		c := podConfig("p")
		tc.change(&c)
		if id, err := m.Run(t.Context(), c); !errors.Is(err, tc.kind) {
			t.Errorf("%s: got %q, %v", name, id, err)
		}
	}
	if len(b.calls) != 3 { // what recovery asks for
		t.Errorf("bad input led to calls: %v", b.calls)
	}
	b.nothingLeft()
}

func TestBadContainers(t *testing.T) {
	b := newBench(t)
	img := b.images["busybox"]
	img.Config.Entrypoint = nil
	b.images["nothing-to-run"] = img
	img.Config.User = "nobody"
	b.images["unknown-user"] = img
	m, _ := b.manager()
	cfg := podConfig("p")
	cfg.LogDirectory = t.TempDir()
	podID := must[string](t)(m.Run(t.Context(), cfg))
	file := filepath.Join(cfg.LogDirectory, "file")
	ok(t, os.WriteFile(file, []byte("{"), 0o600))
	uid, gid := int64(1), int64(1)
	for name, tc := range map[string]struct {
		change func(c *podconfig.Container)
		kind   error
	}{
		"no name":               {func(c *podconfig.Container) { c.Name = "" }, errdefs.ErrInvalid},
		"no image":              {func(c *podconfig.Container) { c.Image = "" }, errdefs.ErrInvalid},
		"unknown image":         {func(c *podconfig.Container) { c.Image = "nginx" }, errdefs.ErrNotFound},
		"nothing to run":        {func(c *podconfig.Container) { c.Image, c.Command = "nothing-to-run", nil }, errdefs.ErrInvalid},
		"working directory":     {func(c *podconfig.Container) { c.WorkingDir = "a" }, errdefs.ErrInvalid},
		"absolute log path":     {func(c *podconfig.Container) { c.LogPath = "/etc/passwd" }, errdefs.ErrInvalid},
		"log path out":          {func(c *podconfig.Container) { c.LogPath = "../x.log" }, errdefs.ErrInvalid},
		"log path below a file": {func(c *podconfig.Container) { c.LogPath = "file/x.log" }, errdefs.ErrInvalid},
		"log path is directory": {func(c *podconfig.Container) { c.LogPath = "." }, errdefs.ErrInvalid},
		"variable without name": {func(c *podconfig.Container) { c.Env = [][2]string{{"", "x"}} }, errdefs.ErrInvalid},
		"variable with =":       {func(c *podconfig.Container) { c.Env = [][2]string{{"a=b", "x"}} }, errdefs.ErrInvalid},
		"zero byte":             {func(c *podconfig.Container) { c.Args = []string{"a\x00"} }, errdefs.ErrInvalid},
		"mount on root": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/", HostPath: "/x"}}
		}, errdefs.ErrInvalid},
		"relative mount": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "x", HostPath: "/x"}}
		}, errdefs.ErrInvalid},
		"relative host path": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", HostPath: "x"}}
		}, errdefs.ErrInvalid},
		"host path below a file": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", HostPath: file + "/x"}}
		}, errdefs.ErrInvalid},
		"propagation": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", HostPath: "/x", Propagation: "x"}}
		}, errdefs.ErrInvalid},
		"rro without ro": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", HostPath: "/x", RecursiveReadonly: true}}
		}, errdefs.ErrInvalid},
		"image volume of no image": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", Image: "none"}}
		}, errdefs.ErrNotFound},
		"image volume and host path": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", Image: "busybox", HostPath: "/x"}}
		}, errdefs.ErrInvalid},
		"sub-path without image": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", HostPath: "/x", ImageSubPath: "x"}}
		}, errdefs.ErrInvalid},
		"sub-path above image": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", Image: "busybox", ImageSubPath: "etc/../../x"}}
		}, errdefs.ErrInvalid},
		"absolute sub-path": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", Image: "busybox", ImageSubPath: "/etc"}}
		}, errdefs.ErrInvalid},
		"sub-path that is not in the image": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", Image: "busybox", ImageSubPath: "none"}}
		}, errdefs.ErrInvalid},
		"propagation of an image": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", Image: "busybox", Propagation: podconfig.PropagationBidirectional}}
		}, errdefs.ErrInvalid},
		"mount option": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", HostPath: "/x", Options: []string{"noexec", "rw"}}}
		}, errdefs.ErrInvalid},
		"ids of users only": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", HostPath: "/x", Users: podconfig.IDMaps{UIDs: []podconfig.IDMap{{Length: 1}}}}}
		}, errdefs.ErrInvalid},
		"ids out of range": {func(c *podconfig.Container) {
			maps := []podconfig.IDMap{{Host: 1<<32 - 1, Length: 2}}
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", HostPath: "/x", Users: podconfig.IDMaps{UIDs: maps, GIDs: maps}}}
		}, errdefs.ErrInvalid},
		"device that is none": {func(c *podconfig.Container) { c.Devices = []podconfig.Device{{HostPath: file}} }, errdefs.ErrInvalid},
		"unknown device":      {func(c *podconfig.Container) { c.Devices = []podconfig.Device{{HostPath: "/dev/none"}} }, errdefs.ErrInvalid},
		"relative device":     {func(c *podconfig.Container) { c.Devices = []podconfig.Device{{HostPath: "null"}} }, errdefs.ErrInvalid},
		"relative device target": {func(c *podconfig.Container) {
			c.Devices = []podconfig.Device{{HostPath: "/dev/null", ContainerPath: "x"}}
		}, errdefs.ErrInvalid},
		"device permissions": {func(c *podconfig.Container) {
			c.Devices = []podconfig.Device{{HostPath: "/dev/null", Permissions: "x"}}
		}, errdefs.ErrInvalid},
		"cdi device of no form":        {func(c *podconfig.Container) { c.CDIDevices = []string{"gpu0"} }, errdefs.ErrInvalid},
		"cdi device that is not there": {func(c *podconfig.Container) { c.CDIDevices = []string{"a.example/b=c"} }, errdefs.ErrPrecondition},
		"cdi device twice": {func(c *podconfig.Container) {
			c.CDIDevices = []string{"a.example/b=c", "a.example/b=c"}
		}, errdefs.ErrInvalid},
		"stop signal": {func(c *podconfig.Container) { c.StopSignal = "SIGNOT" }, errdefs.ErrInvalid},
		"cpu shares":  {func(c *podconfig.Container) { c.Resources.CPUShares = -1 }, errdefs.ErrInvalid},
		"cpuset":      {func(c *podconfig.Container) { c.Resources.CpusetCPUs = "a" }, errdefs.ErrInvalid},
		"swap below memory": {func(c *podconfig.Container) {
			c.Resources.MemoryLimit, c.Resources.MemorySwapLimit = 2, 1
		}, errdefs.ErrInvalid},
		"oom score":      {func(c *podconfig.Container) { c.Resources.OOMScoreAdj = 1001 }, errdefs.ErrInvalid},
		"huge page size": {func(c *podconfig.Container) { c.Resources.Hugepages = map[string]uint64{"big": 1} }, errdefs.ErrInvalid},
		"cgroup file": {func(c *podconfig.Container) {
			c.Resources.Unified = map[string]string{"../x": "1"}
		}, errdefs.ErrInvalid},
		"capability":            {func(c *podconfig.Container) { c.Security.AddCapabilities = []string{"FLY"} }, errdefs.ErrInvalid},
		"masked path":           {func(c *podconfig.Container) { c.Security.MaskedPaths = []string{"x"} }, errdefs.ErrInvalid},
		"user and uid":          {func(c *podconfig.Container) { c.Security.User = podconfig.User{UID: &uid, Name: "app"} }, errdefs.ErrInvalid},
		"group without user":    {func(c *podconfig.Container) { c.Security.User = podconfig.User{GID: &gid} }, errdefs.ErrInvalid},
		"unknown user":          {func(c *podconfig.Container) { c.Security.User.Name = "nobody" }, errdefs.ErrInvalid},
		"unknown user of image": {func(c *podconfig.Container) { c.Image = "unknown-user" }, errdefs.ErrInvalid},
		"seccomp type":          {func(c *podconfig.Container) { c.Security.Seccomp.Type = "x" }, errdefs.ErrInvalid},
		"relative seccomp": {func(c *podconfig.Container) {
			c.Security.Seccomp = podconfig.Seccomp{Type: podconfig.ProfileLocalhost, Localhost: "x"}
		}, errdefs.ErrInvalid},
		"no seccomp file": {func(c *podconfig.Container) {
			c.Security.Seccomp = podconfig.Seccomp{Type: podconfig.ProfileLocalhost, Localhost: "/none"}
		}, errdefs.ErrInvalid},
		"seccomp no file": {func(c *podconfig.Container) {
			c.Security.Seccomp = podconfig.Seccomp{Type: podconfig.ProfileLocalhost, Localhost: "/"}
		}, errdefs.ErrInvalid},
		"seccomp not json": {func(c *podconfig.Container) {
			c.Security.Seccomp = podconfig.Seccomp{Type: podconfig.ProfileLocalhost, Localhost: file}
		}, errdefs.ErrInvalid},
		"apparmor form":                   {func(c *podconfig.Container) { c.Security.AppArmor = "x" }, errdefs.ErrInvalid},
		"privileged in a pod that is not": {func(c *podconfig.Container) { c.Security.Privileged = true }, errdefs.ErrInvalid},
		"pid mode":                        {func(c *podconfig.Container) { c.Security.Namespaces.PID = "x" }, errdefs.ErrInvalid},
		"target without id": {func(c *podconfig.Container) {
			c.Security.Namespaces.PID = podconfig.NamespaceTarget
		}, errdefs.ErrInvalid},
		"user namespace without ids": {func(c *podconfig.Container) {
			c.Security.Namespaces.User = podconfig.NamespacePod
		}, errdefs.ErrInvalid},
		"user namespace in a pod without": {func(c *podconfig.Container) {
			c.Security.Namespaces.User, c.Security.Namespaces.Users = podconfig.NamespacePod, someUsers(0, 1000)
		}, errdefs.ErrInvalid},
	} {
		c := containerConfig("run")
		tc.change(&c)
		if id, err := m.Create(t.Context(), podID, c); !errors.Is(err, tc.kind) {
			t.Errorf("%s: got %q, %v", name, id, err)
		}
	}
	if n := len(slices.Collect(m.Containers(state.ContainerFilter{}))); n != 0 {
		t.Errorf("%d containers", n)
	}
	ok(t, m.Stop(t.Context(), podID))
	if _, err := m.Create(t.Context(), podID, containerConfig("run")); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("in a stopped pod: %v", err)
	}
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}

func TestSystemdWantsASlice(t *testing.T) {
	o := Options{CgroupDriver: podconfig.Systemd}.withDefaults()
	c := podConfig("p")
	c.CgroupParent = "/kubepods"
	if err := c.Validate(o.Handlers, o.CgroupDriver); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	c.CgroupParent = "/kubepods.slice/kubepods-pod1.slice"
	if err := c.Validate(o.Handlers, o.CgroupDriver); err != nil {
		t.Error(err)
	}
	m := New(o, Deps{})
	defer m.Close()
	if got := m.opts.cgroups().SpecPath(&c, "id"); got != "kubepods-pod1.slice:coracle:id" {
		t.Errorf("cgroups path %s", got)
	}
}
