package podconfig

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/pod/errdefs"
)

func someHandlers() map[string]Handler { return map[string]Handler{"coracle": {}} }

// someUsers maps 65536 ids.
func someUsers(container, host uint32) IDMaps {
	maps := []IDMap{{Container: container, Host: host, Length: 1 << 16}}
	return IDMaps{UIDs: maps, GIDs: slices.Clone(maps)}
}

func goodPod() Pod {
	return Pod{Name: "p", Namespace: "default", UID: "uid-p", Hostname: "host-p"}
}

func TestBadPods(t *testing.T) {
	good := goodPod()
	if err := good.Validate(someHandlers, Cgroupfs); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(c *Pod)
		kind   error
	}{
		"no name":         {func(c *Pod) { c.Name = "" }, errdefs.ErrInvalid},
		"no namespace":    {func(c *Pod) { c.Namespace = "" }, errdefs.ErrInvalid},
		"no uid":          {func(c *Pod) { c.UID = "" }, errdefs.ErrInvalid},
		"slash in name":   {func(c *Pod) { c.Name = "a/b" }, errdefs.ErrInvalid},
		"newline in uid":  {func(c *Pod) { c.UID = "a\nb" }, errdefs.ErrInvalid},
		"long name":       {func(c *Pod) { c.Name = strings.Repeat("x", 300) }, errdefs.ErrInvalid},
		"hostname":        {func(c *Pod) { c.Hostname = "a b" }, errdefs.ErrInvalid},
		"hostname lines":  {func(c *Pod) { c.Hostname = "a\n10.0.0.1\tregistry.example" }, errdefs.ErrInvalid},
		"hostname ends":   {func(c *Pod) { c.Hostname = "a\n" }, errdefs.ErrInvalid},
		"hostname tab":    {func(c *Pod) { c.Hostname = "a\tb" }, errdefs.ErrInvalid},
		"hostname NUL":    {func(c *Pod) { c.Hostname = "a\x00b" }, errdefs.ErrInvalid},
		"hostname escape": {func(c *Pod) { c.Hostname = "a\x1b[2J" }, errdefs.ErrInvalid},
		"hostname remark": {func(c *Pod) { c.Hostname = "#a" }, errdefs.ErrInvalid},
		"hostname blank":  {func(c *Pod) { c.Hostname = "a\u00a0b" }, errdefs.ErrInvalid},
		"long hostname":   {func(c *Pod) { c.Hostname = strings.Repeat("x", 65) }, errdefs.ErrInvalid},
		"log directory":   {func(c *Pod) { c.LogDirectory = "logs" }, errdefs.ErrInvalid},
		"runtime handler": {func(c *Pod) { c.RuntimeHandler = "kata" }, errdefs.ErrInvalid},
		"dns server":      {func(c *Pod) { c.DNS.Servers = []string{"dns.example"} }, errdefs.ErrInvalid},
		"dns search":      {func(c *Pod) { c.DNS.Searches = []string{"a\nnameserver 1.1.1.1"} }, errdefs.ErrInvalid},
		"dns option":      {func(c *Pod) { c.DNS.Options = []string{""} }, errdefs.ErrInvalid},
		"protocol":        {func(c *Pod) { c.Ports = []Port{{Protocol: "icmp", ContainerPort: 1}} }, errdefs.ErrInvalid},
		"container port":  {func(c *Pod) { c.Ports = []Port{{ContainerPort: 70000}} }, errdefs.ErrInvalid},
		"no port":         {func(c *Pod) { c.Ports = []Port{{HostPort: 80}} }, errdefs.ErrInvalid},
		"host port":       {func(c *Pod) { c.Ports = []Port{{ContainerPort: 1, HostPort: -1}} }, errdefs.ErrInvalid},
		"host ip":         {func(c *Pod) { c.Ports = []Port{{ContainerPort: 1, HostIP: "x"}} }, errdefs.ErrInvalid},
		"host port twice": {func(c *Pod) {
			c.Ports = []Port{{ContainerPort: 1, HostPort: 8}, {ContainerPort: 2, HostPort: 8}}
		}, errdefs.ErrInvalid},
		"sysctl name":   {func(c *Pod) { c.Sysctls = map[string]string{"net..x": "1"} }, errdefs.ErrInvalid},
		"sysctl escape": {func(c *Pod) { c.Sysctls = map[string]string{"net/../kernel/panic": "1"} }, errdefs.ErrInvalid},
		"host sysctl":   {func(c *Pod) { c.Sysctls = map[string]string{"kernel.panic": "1"} }, errdefs.ErrInvalid},
		"host net sysctl": {func(c *Pod) {
			c.Sysctls, c.Namespaces.Network = map[string]string{"net.core.somaxconn": "1"}, NamespaceNode
		}, errdefs.ErrInvalid},
		"host ipc sysctl": {func(c *Pod) {
			c.Sysctls, c.Namespaces.IPC = map[string]string{"kernel.shmmax": "1"}, NamespaceNode
		}, errdefs.ErrInvalid},
		"cgroup parent":               {func(c *Pod) { c.CgroupParent = "/a/../../b" }, errdefs.ErrInvalid},
		"cgroup as scope":             {func(c *Pod) { c.CgroupParent = "a.slice:b:c" }, errdefs.ErrInvalid},
		"network mode":                {func(c *Pod) { c.Namespaces.Network = NamespaceTarget }, errdefs.ErrInvalid},
		"ipc mode":                    {func(c *Pod) { c.Namespaces.IPC = NamespaceContainer }, errdefs.ErrInvalid},
		"pid mode":                    {func(c *Pod) { c.Namespaces.PID = NamespaceTarget }, errdefs.ErrInvalid},
		"user namespace without ids":  {func(c *Pod) { c.Namespaces.User = NamespacePod }, errdefs.ErrInvalid},
		"user namespace of container": {func(c *Pod) { c.Namespaces.User = NamespaceContainer }, errdefs.ErrInvalid},
		"ids without user namespace":  {func(c *Pod) { c.Namespaces.Users = someUsers(0, 1000) }, errdefs.ErrInvalid},
		"ids of two ranges": {func(c *Pod) {
			c.Namespaces.User, c.Namespaces.Users = NamespacePod, someUsers(0, 1000)
			c.Namespaces.Users.UIDs = append(c.Namespaces.Users.UIDs, IDMap{Container: 70000, Host: 1, Length: 1})
		}, errdefs.ErrInvalid},
		"other ids for groups": {func(c *Pod) {
			c.Namespaces.User, c.Namespaces.Users = NamespacePod, someUsers(0, 1000)
			c.Namespaces.Users.GIDs = someUsers(0, 2000).GIDs
		}, errdefs.ErrInvalid},
		"ids without root": {func(c *Pod) {
			c.Namespaces.User, c.Namespaces.Users = NamespacePod, someUsers(1, 1000)
		}, errdefs.ErrInvalid},
		"ids beyond the last": {func(c *Pod) {
			c.Namespaces.User, c.Namespaces.Users = NamespacePod, someUsers(0, 1<<32-100)
		}, errdefs.ErrInvalid},
		"user namespace and the host's network": {func(c *Pod) {
			c.Namespaces.User, c.Namespaces.Users, c.Namespaces.Network = NamespacePod, someUsers(0, 1000), NamespaceNode
		}, errdefs.ErrInvalid},
	} {
		c := goodPod()
		tc.change(&c)
		if err := c.Validate(someHandlers, Cgroupfs); !errors.Is(err, tc.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBadContainers(t *testing.T) {
	good := Container{Name: "c", Image: "busybox", Command: []string{"run"}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	uid, gid := int64(1), int64(1)
	for name, tc := range map[string]struct {
		change func(c *Container)
		kind   error
	}{
		"no name":               {func(c *Container) { c.Name = "" }, errdefs.ErrInvalid},
		"no image":              {func(c *Container) { c.Image = "" }, errdefs.ErrInvalid},
		"working directory":     {func(c *Container) { c.WorkingDir = "a" }, errdefs.ErrInvalid},
		"absolute log path":     {func(c *Container) { c.LogPath = "/etc/passwd" }, errdefs.ErrInvalid},
		"log path out":          {func(c *Container) { c.LogPath = "../x.log" }, errdefs.ErrInvalid},
		"variable without name": {func(c *Container) { c.Env = [][2]string{{"", "x"}} }, errdefs.ErrInvalid},
		"variable with =":       {func(c *Container) { c.Env = [][2]string{{"a=b", "x"}} }, errdefs.ErrInvalid},
		"zero byte":             {func(c *Container) { c.Args = []string{"a\x00"} }, errdefs.ErrInvalid},
		"mount on root": {func(c *Container) {
			c.Mounts = []Mount{{ContainerPath: "/", HostPath: "/x"}}
		}, errdefs.ErrInvalid},
		"relative mount": {func(c *Container) {
			c.Mounts = []Mount{{ContainerPath: "x", HostPath: "/x"}}
		}, errdefs.ErrInvalid},
		"relative host path": {func(c *Container) {
			c.Mounts = []Mount{{ContainerPath: "/x", HostPath: "x"}}
		}, errdefs.ErrInvalid},
		"propagation": {func(c *Container) {
			c.Mounts = []Mount{{ContainerPath: "/x", HostPath: "/x", Propagation: "x"}}
		}, errdefs.ErrInvalid},
		"rro without ro": {func(c *Container) {
			c.Mounts = []Mount{{ContainerPath: "/x", HostPath: "/x", RecursiveReadonly: true}}
		}, errdefs.ErrInvalid},
		"image volume and host path": {func(c *Container) {
			c.Mounts = []Mount{{ContainerPath: "/x", Image: "busybox", HostPath: "/x"}}
		}, errdefs.ErrInvalid},
		"sub-path without image": {func(c *Container) {
			c.Mounts = []Mount{{ContainerPath: "/x", HostPath: "/x", ImageSubPath: "x"}}
		}, errdefs.ErrInvalid},
		"sub-path above image": {func(c *Container) {
			c.Mounts = []Mount{{ContainerPath: "/x", Image: "busybox", ImageSubPath: "etc/../../x"}}
		}, errdefs.ErrInvalid},
		"absolute sub-path": {func(c *Container) {
			c.Mounts = []Mount{{ContainerPath: "/x", Image: "busybox", ImageSubPath: "/etc"}}
		}, errdefs.ErrInvalid},
		"propagation of an image": {func(c *Container) {
			c.Mounts = []Mount{{ContainerPath: "/x", Image: "busybox", Propagation: PropagationBidirectional}}
		}, errdefs.ErrInvalid},
		"mount option": {func(c *Container) {
			c.Mounts = []Mount{{ContainerPath: "/x", HostPath: "/x", Options: []string{"noexec", "rw"}}}
		}, errdefs.ErrInvalid},
		"ids of users only": {func(c *Container) {
			c.Mounts = []Mount{{ContainerPath: "/x", HostPath: "/x", Users: IDMaps{UIDs: []IDMap{{Length: 1}}}}}
		}, errdefs.ErrInvalid},
		"ids out of range": {func(c *Container) {
			maps := []IDMap{{Host: 1<<32 - 1, Length: 2}}
			c.Mounts = []Mount{{ContainerPath: "/x", HostPath: "/x", Users: IDMaps{UIDs: maps, GIDs: maps}}}
		}, errdefs.ErrInvalid},
		"relative device": {func(c *Container) { c.Devices = []Device{{HostPath: "null"}} }, errdefs.ErrInvalid},
		"relative device target": {func(c *Container) {
			c.Devices = []Device{{HostPath: "/dev/null", ContainerPath: "x"}}
		}, errdefs.ErrInvalid},
		"device permissions": {func(c *Container) {
			c.Devices = []Device{{HostPath: "/dev/null", Permissions: "x"}}
		}, errdefs.ErrInvalid},
		"cdi device of no form": {func(c *Container) { c.CDIDevices = []string{"gpu0"} }, errdefs.ErrInvalid},
		"cdi device twice": {func(c *Container) {
			c.CDIDevices = []string{"a.example/b=c", "a.example/b=c"}
		}, errdefs.ErrInvalid},
		"stop signal": {func(c *Container) { c.StopSignal = "SIGNOT" }, errdefs.ErrInvalid},
		"cpu shares":  {func(c *Container) { c.Resources.CPUShares = -1 }, errdefs.ErrInvalid},
		"cpuset":      {func(c *Container) { c.Resources.CpusetCPUs = "a" }, errdefs.ErrInvalid},
		"swap below memory": {func(c *Container) {
			c.Resources.MemoryLimit, c.Resources.MemorySwapLimit = 2, 1
		}, errdefs.ErrInvalid},
		"oom score":      {func(c *Container) { c.Resources.OOMScoreAdj = 1001 }, errdefs.ErrInvalid},
		"huge page size": {func(c *Container) { c.Resources.Hugepages = map[string]uint64{"big": 1} }, errdefs.ErrInvalid},
		"cgroup file": {func(c *Container) {
			c.Resources.Unified = map[string]string{"../x": "1"}
		}, errdefs.ErrInvalid},
		"capability":         {func(c *Container) { c.Security.AddCapabilities = []string{"FLY"} }, errdefs.ErrInvalid},
		"masked path":        {func(c *Container) { c.Security.MaskedPaths = []string{"x"} }, errdefs.ErrInvalid},
		"user and uid":       {func(c *Container) { c.Security.User = User{UID: &uid, Name: "app"} }, errdefs.ErrInvalid},
		"group without user": {func(c *Container) { c.Security.User = User{GID: &gid} }, errdefs.ErrInvalid},
		"seccomp type":       {func(c *Container) { c.Security.Seccomp.Type = "x" }, errdefs.ErrInvalid},
		"relative seccomp": {func(c *Container) {
			c.Security.Seccomp = Seccomp{Type: ProfileLocalhost, Localhost: "x"}
		}, errdefs.ErrInvalid},
		"pid mode": {func(c *Container) { c.Security.Namespaces.PID = "x" }, errdefs.ErrInvalid},
		"target without id": {func(c *Container) {
			c.Security.Namespaces.PID = NamespaceTarget
		}, errdefs.ErrInvalid},
		"user namespace without ids": {func(c *Container) {
			c.Security.Namespaces.User = NamespacePod
		}, errdefs.ErrInvalid},
	} {
		c := good
		tc.change(&c)
		if err := c.Validate(); !errors.Is(err, tc.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSystemdWantsASlice(t *testing.T) {
	c := goodPod()
	c.CgroupParent = "/kubepods"
	if err := c.Validate(someHandlers, Systemd); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	c.CgroupParent = "/kubepods.slice/kubepods-pod1.slice"
	if err := c.Validate(someHandlers, Systemd); err != nil {
		t.Error(err)
	}
	g := Cgroups{Driver: Systemd, Root: "system.slice"}
	if got := g.SpecPath(&c, "id"); got != "kubepods-pod1.slice:coracle:id" {
		t.Errorf("cgroups path %s", got)
	}
}

// A kubelet without a cluster domain sends names that end with a dot; other kubelets and users send
// what sethostname(2) takes.
func TestHostnames(t *testing.T) {
	for _, name := range []string{"web-0.web.default.svc.", "web_0", "-web", "web!", "кит", strings.Repeat("x", 64)} {
		c := goodPod()
		c.Hostname = name
		if err := c.Validate(someHandlers, Cgroupfs); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := c.UTSName(); err != nil || got != name {
			t.Errorf("%s: the pod is called %q, %v", name, got, err)
		}
	}
}

// A container may say of user namespaces what its pod says, and nothing else.
func TestUserNamespaceOfAContainerFitsItsPod(t *testing.T) {
	with, without := Namespaces{User: NamespacePod, Users: someUsers(0, 100000)}, Namespaces{}
	for name, tc := range map[string]struct {
		pod, container Namespaces
		refused        bool
	}{
		"nothing is said":      {with, Namespaces{}, false},
		"the same":             {with, with, false},
		"the host's":           {with, Namespaces{User: NamespaceNode}, true},
		"other ids":            {with, Namespaces{User: NamespacePod, Users: someUsers(0, 5000)}, true},
		"none in either":       {without, Namespaces{User: NamespaceNode}, false},
		"one in a pod without": {without, with, true},
	} {
		if err := tc.container.FitsPod(&tc.pod); errors.Is(err, errdefs.ErrInvalid) != tc.refused || !tc.refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
