package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// store keeps volumes on the node's disk. Every operation may be repeated: the controller does so after an error.
type store struct {
	// folders has a folder for each volume, which for a disk is its mount point.
	folders string
	// disks has an image file for each volume that is a disk.
	disks string
}

func (s store) folder(volume string) string { return filepath.Join(s.folders, volume) }

func (s store) image(volume string) string { return filepath.Join(s.disks, volume+".img") }

// makeFolder makes a volume as a fresh disk would be: owned by root and writable by nobody else, so that a pod
// without fsGroup meets here what it meets on a cloud's disk.
func (s store) makeFolder(volume string) (string, error) {
	path := s.folder(volume)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return "", err
	}
	return path, nil
}

func (s store) makeDisk(volume string, bytes int64) (string, error) {
	image := s.image(volume)
	if err := formatImage(image, bytes); err != nil {
		return "", err
	}
	return s.folder(volume), s.mountDisk(volume)
}

// formatImage makes the file system under another name first: an image with its final name is a whole one.
func formatImage(image string, bytes int64) error {
	if _, err := os.Stat(image); err == nil {
		return nil
	}
	unfinished := image + ".new"
	if err := os.WriteFile(unfinished, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(unfinished, bytes); err != nil {
		return err
	}
	if err := command("mkfs.ext4", "-q", "-F", "-m", "0", unfinished); err != nil {
		return err
	}
	return os.Rename(unfinished, image)
}

func (s store) mountDisk(volume string) error {
	path, err := s.makeFolder(volume)
	if err != nil {
		return err
	}
	mounted, err := isMountPoint(path)
	if err != nil || mounted {
		return err
	}
	return command("mount", "-o", "loop", s.image(volume), path)
}

// mountDisks mounts what an earlier life of the node made.
func (s store) mountDisks() error {
	images, err := filepath.Glob(s.image("*"))
	if err != nil {
		return err
	}
	for _, image := range images {
		if err := s.mountDisk(strings.TrimSuffix(filepath.Base(image), ".img")); err != nil {
			return err
		}
	}
	return nil
}

func (s store) remove(volume string) error {
	path := s.folder(volume)
	mounted, err := isMountPoint(path)
	if err != nil {
		return err
	}
	if mounted {
		if err := command("umount", path); err != nil {
			return err
		}
	}
	if err := os.Remove(s.image(volume)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(path)
}

func isMountPoint(path string) (bool, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return false, err
	}
	return strings.Contains(string(mounts), " "+path+" "), nil
}

func command(name string, arguments ...string) error {
	output, err := exec.Command(name, arguments...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(arguments, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}
