// Volumes on the node's own disk, as `local` PersistentVolumes: unlike hostPath they honour a pod's fsGroup.
//
// A class with the parameter kind=folder gives a folder, which is as large as the disk below it; one with
// kind=disk gives a loop-mounted ext4 of the size that the claim asks for.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

const provisionerName = "codeexec.dev/node"

// provisioner answers the controller library's two questions: make a volume, delete a volume.
type provisioner struct {
	store store
	node  string
}

func (p *provisioner) Provision(_ context.Context, options controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	request := options.PVC.Spec.Resources.Requests[v1.ResourceStorage]
	var path string
	var err error
	switch kind := options.StorageClass.Parameters["kind"]; kind {
	case "folder":
		path, err = p.store.makeFolder(options.PVName)
	case "disk":
		path, err = p.store.makeDisk(options.PVName, request.Value())
	default:
		err = fmt.Errorf("storage class %s: parameter kind is %q, not folder or disk", options.StorageClass.Name, kind)
	}
	if err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: options.PVName},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *options.StorageClass.ReclaimPolicy,
			AccessModes:                   options.PVC.Spec.AccessModes,
			Capacity:                      v1.ResourceList{v1.ResourceStorage: request},
			PersistentVolumeSource:        v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}},
			NodeAffinity:                  onlyOn(p.node),
		},
	}, controller.ProvisioningFinished, nil
}

func (p *provisioner) Delete(_ context.Context, volume *v1.PersistentVolume) error {
	return p.store.remove(volume.Name)
}

func onlyOn(node string) *v1.VolumeNodeAffinity {
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{
			Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node},
		}},
	}}}}
}

func run() error {
	kubeconfig := flag.String("kubeconfig", "", "file that names the cluster and the user")
	node := flag.String("node", "", "name of the node that has the volumes")
	folders := flag.String("folders", "", "folder that holds a folder or mount point for each volume")
	disks := flag.String("disks", "", "folder that holds the disk images")
	flag.Parse()

	volumes := store{folders: *folders, disks: *disks}
	if err := volumes.mountDisks(); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx := context.Background()
	controller.NewProvisionController(ctx, client, provisionerName, &provisioner{store: volumes, node: *node},
		controller.LeaderElection(false)).Run(ctx)
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
